"""Variables of the programs' environment that choose a traffic class, turn the shim off, or avoid RDMA.

The environment is that of --pid as it was started, else that of this shell. What files of NCCL (`nccl.conf`) and UCX
(`ucx.conf`) set counts, too, where the environment does not set it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mfsd.fabric.libraries import LIBRARIES, Library, dscps, levels, traffic_class
from mfsd.fabric.library_files import Setting, set_in_files
from mfsd.fabric.link_layer import infiniband_ports, other_ports
from mfsd.observe.doctor.checks.bypass import bypassing
from mfsd.observe.doctor.checks.lanes import TRAFFIC_CLASS, asked_for
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host
from mfsd.policy.mark_text import VARIABLE, parse_marks
from mfsd.policy.types import Stage

TITLE = "Environment"
NCCL_CLEAR_TO_SEND = "NCCL_IB_FIFO_TC"
TRUE = ("1", "true", "yes", "on", "y")

CLASS = Kind(
    "environment.class",
    "warn",
    "The library asks for another class than the policy has for it. Queue pairs for which no rule of the daemon gives "
    "a DSCP carry it.",
    "unset the variable, or give it the value that mfsctl host env prints",
)
CLASS_BYPASSES = Kind(
    "environment.class-unseen",
    "fail",
    "The library writes this class into queue pairs that MFS does not see. The policy has another class for the data "
    "it moves.",
    "give the variable the value that mfsctl host env prints",
)
CLASS_MISSING = Kind(
    "environment.class-missing",
    "fail",
    "The library posts past MFS, and nothing gives its packets a class: an all-to-all that blocks a layer travels in "
    "best effort, below the KV that it should go before.",
    "start the program with mfs-run --policy NAME, or set what mfsctl host env prints",
)
CLASS_OVERRIDES = Kind(
    "environment.class-overrides",
    "info",
    "Two values are set for the same thing; this one takes effect.",
    "do nothing if it is the value that you want",
)
CLASS_DANGEROUS = Kind(
    "environment.class-infiniband",
    "fail",
    "NVSHMEM's traffic class is set on a host with a port of InfiniBand: some versions of NVSHMEM end the program "
    "with an error there.",
    "unset it and set NVSHMEM_IB_SL: mfsctl host env --infiniband",
)
LEVEL_MISSING = Kind(
    "environment.level-missing",
    "warn",
    "The library posts past MFS on a host with a port of InfiniBand, which has service levels in place of classes, "
    "and nothing gives its packets a level: they go in level 0.",
    "start the program with mfs-run --policy NAME --infiniband, or set what mfsctl host env --infiniband prints",
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
    "this is right as the first step of a roll-out; unset MFS_MODE to have transfers scheduled",
)
MARKS_WRONG = Kind(
    "environment.marks",
    "fail",
    "The shim marks nothing: its marks cannot be read.",
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
    "unset the variable to use RDMA",
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
    "This user may not read the variables of the process, so they were not examined.",
    "run the doctor as root or as the program's user",
)
CLEAR = Kind("environment.clear", "ok", "No variable works against the scheduler.")


def run(host: Host) -> Iterator[Finding]:
    owner, environ = host.program_environ
    if host.environ_problem:
        yield UNREADABLE(host.environ_problem, owner)
        return
    files = _files(host, environ)
    known = {name: one.value for name, one in files.items()} | dict(environ)
    problems = [*_classes(host, known), *_before_files(environ, files), *_shim(host, known), *_paths(known)]
    yield from problems
    if not problems:
        yield CLEAR(f"{len(known)} variables of {owner}")


def _files(host: Host, environ: Mapping[str, str]) -> dict[str, Setting]:
    """Settings for the program from NCCL's and UCX's own files."""
    if host.pid is None:
        return set_in_files(environ, root=host.root)
    process = host.proc / str(host.pid)
    return set_in_files(environ, uid=process.stat().st_uid, root=host.root, folder=process / "cwd")


def _before_files(environ: Mapping[str, str], files: Mapping[str, Setting]) -> Iterator[Finding]:
    for name in (name for one in LIBRARIES for name in (one.traffic_class, one.service_level) if name in files):
        if name in environ and environ[name] != files[name].value:
            here = f"{name}={environ[name]} of the environment"
            yield CLASS_OVERRIDES(f"{here} goes before {files[name].value} of {files[name].file}", name)


def _classes(host: Host, environ: Mapping[str, str]) -> Iterator[Finding]:
    owners = {d: c.name for c in host.profile.classes for d in (c.dscp, *c.also_dscp)}
    devices = host.sys / "class/infiniband"
    ports = infiniband_ports(devices)
    broken = [library for library in LIBRARIES if library.infiniband_breaks and ports]
    for library in broken:
        if environ.get(library.traffic_class):
            reason = f"{library.traffic_class}={environ[library.traffic_class]}, and {ports[0]} is InfiniBand"
            yield CLASS_DANGEROUS(reason, library.traffic_class)
    yield from _levels(host, environ, ports)
    if environ.get("MFS_MODE") == "mark":
        yield from _marks(environ.get(VARIABLE, ""), owners)
        return  # the variables are part of it, and what is set by hand stays by intent
    of_stage = dscps(host.profile)
    in_use = bypassing(host) if other_ports(devices) or not ports else frozenset[Library]()
    for library in (one for one in LIBRARIES if one not in broken):
        name = library.traffic_class
        if name == TRAFFIC_CLASS and asked_for(environ):
            continue  # with lanes any value is wrong, see lanes.overridden
        value = _number(environ, name)
        wanted = of_stage[library.stage]
        if value is not None:
            yield from _other_class(library, name, value, environ[name], wanted, owners)
            yield from _overridden(library, environ)
        elif library in in_use and (not library.otherwise or _number(environ, library.otherwise) is None):
            yield CLASS_MISSING(f"{name} is not set; the policy's is {traffic_class(wanted)}", name)
    fifo = _number(environ, NCCL_CLEAR_TO_SEND)
    if fifo is not None:
        text = environ[NCCL_CLEAR_TO_SEND]
        yield from _other_class(LIBRARIES[0], NCCL_CLEAR_TO_SEND, fifo, text, of_stage[Stage.CONTROL], owners)


def _levels(host: Host, environ: Mapping[str, str], ports: list[str]) -> Iterator[Finding]:
    """Service levels of libraries that post past the shim, where there is InfiniBand."""
    for library in bypassing(host) if ports else ():
        name = library.service_level or library.level_otherwise
        if name and not environ.get(name):
            wanted = levels(host.profile)[library.stage]
            yield LEVEL_MISSING(f"{name} is not set; the policy's is {wanted}, and {ports[0]} is InfiniBand", name)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    """The class that the variable names; None where the library takes its own default."""
    try:
        number = int(environ.get(name, ""), 0)
    except ValueError:
        return None
    return number if number > 0 else None


def _other_class(
    library: Library, name: str, number: int, text: str, wanted: int, owners: Mapping[int, str]
) -> Iterator[Finding]:
    dscp = number >> 2
    if owners.get(dscp, dscp) != owners[wanted]:
        kind = CLASS if library.seen else CLASS_BYPASSES
        found = owners.get(dscp, "best effort")
        yield kind(f"{name}={text}: DSCP {dscp}, class {found} of the policy; {owners[wanted]} is {wanted}", name)


def _overridden(library: Library, environ: Mapping[str, str]) -> Iterator[Finding]:
    name, other = library.traffic_class, library.otherwise
    if other and environ.get(other) and environ[other] != environ[name]:
        yield CLASS_OVERRIDES(f"{name}={environ[name]} goes before {other}={environ[other]}", name)


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
