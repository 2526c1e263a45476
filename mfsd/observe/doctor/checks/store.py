"""Mooncake's store: for how long its master keeps memory for a reader (its lease), and how long MFS may hold a read.

The variables are those of --pid as it was started, else of this shell. The master's lease is read from the command
line of one that runs here, and from the file that this names; the hold budget is the daemon's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, names_in
from mfsd.policy.store_lease import DEFAULT_MS, PARTS, VARIABLE, parse_lease_ms

TITLE = "Mooncake's store"
MASTER = "mooncake_master"
SETTING = re.compile(r"""^\s*["']?default_kv_lease_ttl["']?\s*[:=]\s*["']?(\w+)""", re.MULTILINE)
DURATION = re.compile(r"(\d{1,15})(ms|s|m|h|)")
UNIT_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}

WRONG = Kind(
    "store.lease-wrong",
    "warn",
    f"{VARIABLE} cannot be read, so programs take the default, which may be longer than the master's lease.",
    f"set {VARIABLE} to the master's --default_kv_lease_ttl in milliseconds",
)
LONGER = Kind(
    "store.lease-longer",
    "fail",
    "Programs assume a longer lease than the master gives: a read may be held past the quarter of the real lease "
    "that is safe, and then fail or return memory that was given to another object.",
    f"start programs with {VARIABLE} at the master's lease in milliseconds, or raise its --default_kv_lease_ttl",
)
SHORT = Kind(
    "store.hold-cut",
    "warn",
    "A quarter of the lease is less than the hold budget: the store's transfers go without a permit before others do.",
    f"raise the master's --default_kv_lease_ttl, and {VARIABLE} with it, to four times arbiter.max_hold, or lower that",
)
UNREADABLE = Kind(
    "store.unreadable",
    "unknown",
    "This user may not read the variables of the process or the master's settings: the lease is not known.",
    "run the doctor as root or as the program's user",
)
FITS = Kind("store.fits", "ok", "A read is held for at most a quarter of the lease that programs assume.")


def run(host: Host) -> Iterator[Finding]:
    owner, environ = host.program_environ
    if host.environ_problem:
        yield UNREADABLE(host.environ_problem, owner)
        return
    given = environ.get(VARIABLE, "")
    problems: list[Finding] = []
    try:
        lease_ms = parse_lease_ms(given)
    except ValueError as error:
        problems.append(WRONG(f"{error} ({owner})", VARIABLE))
        lease_ms = DEFAULT_MS
    what = f"{VARIABLE}={lease_ms} ({owner if given else 'default'})"
    daemon = host.daemon()
    max_hold_ms = daemon.daemon.max_hold_ms if daemon is not None else 0.0
    held_ms = min(max_hold_ms or lease_ms / PARTS, lease_ms / PARTS)
    for name, text, master_ms in _masters(host):
        if master_ms is None:
            problems.append(UNREADABLE(text, name))
        elif held_ms > master_ms / PARTS:
            problems.append(LONGER(f"{text}; {what}: a read may be held for {held_ms:g} ms", name))
    if max_hold_ms > lease_ms / PARTS:
        problems.append(SHORT(f"arbiter.max_hold is {max_hold_ms:g} ms; {what}", VARIABLE))
    yield from problems
    if not problems:
        yield FITS(f"{what}: a read is held for {held_ms:g} ms at most")


def _masters(host: Host) -> Iterator[tuple[str, str, float | None]]:
    """For each master that runs here: its name, what was read or why not, and its lease in milliseconds."""
    for pid in filter(str.isdigit, names_in(host.proc)):
        try:
            data = (host.proc / pid / "cmdline").read_bytes()
        except OSError:
            continue
        argv = [os.fsdecode(word) for word in data.split(b"\0")]
        if Path(argv[0]).name != MASTER:
            continue
        text, problem = _setting(host, pid, argv)
        name = f"{MASTER} {pid}"
        if problem:
            yield name, problem, None
        elif text is None:
            yield name, f"--default_kv_lease_ttl is not given, {DEFAULT_MS} ms at least", float(DEFAULT_MS)
        else:
            found = DURATION.fullmatch(text)
            yield name, f"its lease is {text}", float(found[1]) * UNIT_MS[found[2]] if found else None


def _setting(host: Host, pid: str, argv: list[str]) -> tuple[str | None, str]:
    """The lease given to the master by its command line or else by its file, and why it cannot be read."""
    if (flag := _option(argv, "default_kv_lease_ttl")) is not None:
        return flag, ""
    if not (file := _option(argv, "config_path")):
        return None, ""
    path = host.proc / pid / ("root" if file.startswith("/") else "cwd") / file.lstrip("/")
    try:
        found = SETTING.search(path.read_text(errors="replace"))
    except OSError as error:
        return None, f"{file}: {error.strerror}"
    return found[1] if found else None, ""


def _option(argv: list[str], name: str) -> str | None:
    """The last value of a flag, as gflags reads them: one dash or two, after `=` or as the next word."""
    value = None
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        flag, equals, rest = word.partition("=")
        if flag in (f"-{name}", f"--{name}"):
            value = rest if equals else following
    return value
