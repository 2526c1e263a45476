"""NIXL's lanes, engines of one agent that each have a class of their own (MFS_NIXL=1): what leaves them without effect.

The environment is that of --pid as it was started, else that of this shell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mfsd.fabric.link_layer import infiniband_ports
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host
from mfsd.policy.mark_text import SET_BY_US
from mfsd.policy.service_levels import SERVICE_LEVELS, parse_levels

TITLE = "NIXL's lanes"
ASKS = "MFS_NIXL"
TRAFFIC_CLASS, SERVICE_LEVEL = "UCX_IB_TRAFFIC_CLASS", "UCX_IB_SL"

OVERRIDDEN = Kind(
    "lanes.overridden",
    "fail",
    "The variable holds for every engine of a process and goes before their own, so that NIXL's lanes have no effect.",
    "unset it; the adapter sets aside a value that mfs-run --policy NAME has set",
)
OVERRIDDEN_IF_ASKED = Kind(
    "lanes.overridden-if-asked",
    "info",
    "The variable leaves NIXL's lanes without effect. This environment does not ask for lanes.",
    "to give NIXL's transfers lanes (MFS_NIXL=1), unset it; otherwise do nothing",
)
NO_LEVELS = Kind(
    "lanes.no-levels",
    "warn",
    "InfiniBand has service levels, but nothing says which level a lane has: the network treats all lanes as one.",
    "start the program with mfs-run --policy NAME --infiniband",
)
LEVELS_WRONG = Kind(
    "lanes.levels-wrong",
    "fail",
    "The service levels of classes cannot be read, so lanes have none.",
    "start the program with mfs-run --policy NAME --infiniband, which sets them",
)
UNREADABLE = Kind(
    "lanes.unreadable",
    "unknown",
    "This user may not read the variables of the process, so it is not known whether its lanes have an effect.",
    "run the doctor as root or as the program's user",
)
CLEAR = Kind("lanes.clear", "ok", "No variable leaves NIXL's lanes without effect.")


def run(host: Host) -> Iterator[Finding]:
    owner, environ = host.program_environ
    if host.environ_problem:
        yield UNREADABLE(host.environ_problem, owner)
        return
    ports = infiniband_ports(host.sys / "class/infiniband")
    problems = [*_overridden(environ, owner, ports), *_levels(environ, owner, ports)]
    yield from problems
    if not problems:
        yield CLEAR(f"environment of {owner}")


def asked_for(environ: Mapping[str, str]) -> bool:
    return environ.get(ASKS) == "1"


def _overridden(environ: Mapping[str, str], owner: str, ports: list[str]) -> Iterator[Finding]:
    ours = environ.get(SET_BY_US, "").split()
    for name in (TRAFFIC_CLASS, SERVICE_LEVEL) if ports else (TRAFFIC_CLASS,):
        if name in environ and name not in ours:
            kind = OVERRIDDEN if asked_for(environ) else OVERRIDDEN_IF_ASKED
            yield kind(f"{name}={environ[name]} ({owner})", name)


def _levels(environ: Mapping[str, str], owner: str, ports: list[str]) -> Iterator[Finding]:
    if not ports or not asked_for(environ):
        return
    try:
        if not parse_levels(environ.get(SERVICE_LEVELS, "")):
            yield NO_LEVELS(f"{SERVICE_LEVELS} is not set ({owner}), and {ports[0]} is InfiniBand", SERVICE_LEVELS)
    except ValueError as error:
        yield LEVELS_WRONG(f"{error} ({owner})", SERVICE_LEVELS)
