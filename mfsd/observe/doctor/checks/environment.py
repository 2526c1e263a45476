"""Variables of the programs' environment that choose a traffic class, turn the shim off, or avoid RDMA.

The environment is that of --pid as it was started, else that of this shell. NCCL's own files count, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host
from mfsd.policy.mark_text import VARIABLE, parse_marks

TITLE = "Environment"
CLASS_SEEN = ("NCCL_IB_TC", "NCCL_IB_FIFO_TC", "MC_IB_TC")
CLASS_UNSEEN = ("UCX_IB_TRAFFIC_CLASS", "NVSHMEM_IB_TRAFFIC_CLASS", "NCCL_GIN_IB_TC")
TRUE = ("1", "true", "yes", "on", "y")

CLASS = Kind(
    "environment.class",
    "warn",
    "The library asks for a class of its own. Queue pairs for which no rule of the daemon gives a DSCP carry it.",
    "unset the variable, and give such queue pairs a DSCP by a rule in mfsd.toml",
)
CLASS_BYPASSES = Kind(
    "environment.class-unseen",
    "fail",
    "The library writes this class into queue pairs that MFS does not see: unscheduled traffic in a scheduled class.",
    "unset the variable; unmarked traffic is best effort and leaves the classes alone",
)
SHIM_OFF = Kind("environment.shim-off", "fail", "The shim does nothing in this environment.", "unset MFS_MODE")
SHIM_OBSERVES = Kind(
    "environment.shim-observes",
    "warn",
    "The shim only counts and times in this environment; nothing waits for a permit.",
    "unset MFS_MODE, or set it to enforce",
)
SHIM_MARKS = Kind(
    "environment.shim-marks",
    "warn",
    "Programs mark their transfers themselves in this environment: no daemon is asked, and nothing waits for a permit.",
    "as the first step of a roll-out this is right; unset MFS_MODE to have transfers scheduled",
)
MARKS_WRONG = Kind(
    "environment.marks",
    "fail",
    "The shim marks nothing: what it is to mark cannot be read.",
    "start the program with mfs-run --mode mark --policy NAME",
)
MARKS_OTHER = Kind(
    "environment.marks-other",
    "fail",
    "Programs mark classes that the examined fabric policy does not have: they land in best effort.",
    "give mfs-run and mfsctl the same --policy and --policy-file",
)
OTHER_SOCKET = Kind(
    "environment.other-socket",
    "warn",
    "Programs look for another daemon than the one examined here.",
    "give the doctor the same socket: mfsctl --socket PATH doctor",
)
NO_VERBS = Kind(
    "environment.no-rdma",
    "warn",
    "The library is set not to use RDMA: its bytes go through sockets, where MFS does not see them.",
    "unset the variable, if RDMA is to be used",
)
OTHER_VERBS = Kind(
    "environment.other-verbs",
    "info",
    "NCCL loads another verbs library. The shim follows, if that library exports ibv_open_device by name.",
    "check with --pid while the program runs",
)
NET_PLUGIN = Kind(
    "environment.net-plugin",
    "warn",
    "NCCL sends through a plugin. The shim sees it only if the plugin uses libibverbs, not direct verbs.",
    "check with --pid while the program runs, or unset NCCL_NET_PLUGIN",
)
UNREADABLE = Kind(
    "environment.unreadable",
    "unknown",
    "The variables of the process may not be read by this user, so nothing is known of them.",
    "run the doctor as root or as the program's user",
)
CLEAR = Kind("environment.clear", "ok", "No variable works against the scheduler.")


def run(host: Host) -> Iterator[Finding]:
    owner, environ = host.program_environ
    if host.environ_problem:
        yield UNREADABLE(host.environ_problem, owner)
        return
    known = dict(_nccl_files(environ)) | dict(environ)
    problems = [*_classes(host, known), *_shim(host, known), *_paths(known)]
    yield from problems
    if not problems:
        yield CLEAR(f"{len(known)} variables of {owner}")


def _nccl_files(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """NCCL reads NAME=VALUE lines of these files, the environment first."""
    files = [Path("/etc/nccl.conf"), Path(environ.get("HOME", "/nonexistent")) / ".nccl.conf"]
    if named := environ.get("NCCL_CONF_FILE"):
        files = [files[0], Path(named)]
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, equals, value = line.partition("=")
            if equals and not name.startswith("#"):
                yield name.strip(), value.strip()


def _classes(host: Host, environ: Mapping[str, str]) -> Iterator[Finding]:
    owners = {d: c.name for c in host.profile.classes for d in (c.dscp, *c.also_dscp)}
    if environ.get("MFS_MODE") == "mark":
        yield from _marks(environ.get(VARIABLE, ""), owners)
        return  # the variables are part of it, and what is set by hand stays by intent
    for names, kind in ((CLASS_SEEN, CLASS), (CLASS_UNSEEN, CLASS_BYPASSES)):
        for name in names:
            value = environ.get(name, "")
            try:
                number = int(value, 0)
            except ValueError:
                continue
            if number > 0:
                dscp = number >> 2
                yield kind(f"{name}={value}: DSCP {dscp}, class {owners.get(dscp, 'best effort')} of the policy", name)


def _marks(text: str, owners: Mapping[int, str]) -> Iterator[Finding]:
    try:
        marks = parse_marks(text)
    except ValueError as error:
        yield MARKS_WRONG(f"{VARIABLE}: {error}", VARIABLE)
        return
    yield SHIM_MARKS(f"MFS_MODE=mark, {len(marks.rules)} rules", "MFS_MODE")
    if unknown := sorted({dscp for dscp in marks.dscp if dscp is not None} - set(owners)):
        yield MARKS_OTHER(f"DSCP {', '.join(map(str, unknown))} of {VARIABLE}", VARIABLE)


def _shim(host: Host, environ: Mapping[str, str]) -> Iterator[Finding]:
    mode = environ.get("MFS_MODE", "")
    if mode in ("off", "observe"):
        yield (SHIM_OFF if mode == "off" else SHIM_OBSERVES)(f"MFS_MODE={mode}", "MFS_MODE")
    named = environ.get("MFS_SOCKET", "")
    if named and Path(named) != host.socket:
        yield OTHER_SOCKET(f"MFS_SOCKET={named}, examined: {host.socket}", "MFS_SOCKET")


def _paths(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name, avoided in (
        ("NCCL_IB_DISABLE", TRUE),
        ("MC_FORCE_TCP", TRUE),
        ("NCCL_NET", ("socket",)),
    ):
        value = environ.get(name, "")
        if value.lower() in avoided:
            yield NO_VERBS(f"{name}={value}", name)
    if library := environ.get("NCCL_IBVERBS_LIB"):
        yield OTHER_VERBS(f"NCCL_IBVERBS_LIB={library}", "NCCL_IBVERBS_LIB")
    plugin = environ.get("NCCL_NET_PLUGIN", "")
    if plugin and plugin.lower() != "none":
        yield NET_PLUGIN(f"NCCL_NET_PLUGIN={plugin}", "NCCL_NET_PLUGIN")
