"""Clocks: CLOCK_MONOTONIC is what deadlines and heartbeats are measured with; wall time is only for logs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path

from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, read_line

TITLE = "Clock"
READINGS = 20_000
COARSE_NS = 1_000
SLOW_SOURCES = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
STA_UNSYNC, TIME_ERROR = 0x40, 5

BACKWARDS = Kind(
    "clock.backwards",
    "fail",
    "CLOCK_MONOTONIC went backwards: deadlines and heartbeats cannot be trusted.",
    "a kernel or firmware defect: update them, or boot with clocksource=hpet",
)
COARSE = Kind(
    "clock.coarse",
    "warn",
    "CLOCK_MONOTONIC has steps that are longer than a permit takes.",
    "boot with high-resolution timers (highres=on) and a proper clocksource",
)
SLOW = Kind(
    "clock.slow-source",
    "warn",
    "Reading the time goes through slow hardware, which delays every work request that is timed.",
    "use the TSC: tsc=reliable on the kernel's command line, if the machine's TSC is invariant",
)
NAMESPACE = Kind(
    "clock.time-namespace",
    "fail",
    "Program and daemon are in different time namespaces: their CLOCK_MONOTONIC differs, so a live daemon looks dead.",
    "run both in the same time namespace (do not use unshare --time or a runtime's time offsets)",
)
UNSYNCED = Kind(
    "clock.not-synchronised",
    "info",
    "The wall clock is not synchronised. Scheduling does not use it; comparing logs of several nodes does.",
    "run chrony or systemd-timesyncd",
)
SYNCED = Kind("clock.synchronised", "info", "The wall clock is synchronised; scheduling does not depend on it.")
HIDDEN = Kind(
    "clock.unreadable",
    "unknown",
    "This user may not read the time namespace of the process.",
    "run the doctor as root or as the program's user",
)
SANE = Kind("clock.sane", "ok", "CLOCK_MONOTONIC only goes forward, in steps fine enough, and is cheap to read.")


def run(host: Host) -> Iterator[Finding]:
    problems = [*_monotonic(), *_source(host), *_namespace(host)]
    yield from problems
    if not problems:
        source = read_line(host.sys / "devices/system/clocksource/clocksource0/current_clocksource")
        yield SANE(
            f"{READINGS} readings in order, resolution {_resolution_ns()} ns, clock source {source or 'unknown'}"
        )
    yield _wall_clock()


def _resolution_ns() -> int:
    return round(time.clock_getres(time.CLOCK_MONOTONIC) * 1e9)


def _monotonic() -> Iterator[Finding]:
    before = time.monotonic_ns()
    for _ in range(READINGS):
        now = time.monotonic_ns()
        if now < before:
            yield BACKWARDS(f"{before} ns, then {now} ns")
            return
        before = now
    if _resolution_ns() > COARSE_NS:
        yield COARSE(f"resolution {_resolution_ns()} ns")


def _source(host: Host) -> Iterator[Finding]:
    source = read_line(host.sys / "devices/system/clocksource/clocksource0/current_clocksource")
    if source in SLOW_SOURCES:
        yield SLOW(f"clock source {source}")


def _namespace(host: Host) -> Iterator[Finding]:
    daemon = host.daemon()
    if daemon is None:
        return
    theirs = _time_namespace(host.proc / str(daemon.daemon.pid))
    for subject, folder in (("this shell", host.proc / "self"), (f"pid {host.pid}", host.proc / str(host.pid))):
        own = _time_namespace(folder)
        if theirs and not own and host.pid is not None:
            yield HIDDEN(f"{folder / 'ns/time'} cannot be read", subject)
        if own and theirs and own != theirs:
            yield NAMESPACE(f"{own}, mfsd's is {theirs}", subject)


def _time_namespace(folder: Path) -> str:
    try:
        return str((folder / "ns/time").readlink())
    except OSError:
        return ""


def _wall_clock() -> Finding:
    """Calls adjtimex(2) with nothing to set: its status word says what NTP thinks."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = (ctypes.c_char * 512)()
    code = libc.adjtimex(state)
    status = ctypes.cast(state, ctypes.POINTER(ctypes.c_int))[_STATUS_INT] if code >= 0 else STA_UNSYNC
    if code == TIME_ERROR or status & STA_UNSYNC:
        return UNSYNCED(f"adjtimex: state {code}, status {status:#x}")
    return SYNCED(f"adjtimex: state {code}, status {status:#x}")


_STATUS_INT = 10 if ctypes.sizeof(ctypes.c_long) == 8 else 5
"""Position of `status` in struct timex, counted in ints: after modes (padded) and four longs."""
