"""Libraries that read the class of their packets from a variable, and the values that a fabric policy gives these.

With them one policy file sets the classes of all libraries: for programs that mark without a daemon, and for libraries
that post without libibverbs, which no daemon and no preloaded library can mark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from mfsd.fabric.library_files import Setting
from mfsd.fabric.policy import Profile
from mfsd.fabric.wire_table import wire_table
from mfsd.policy.mark_text import SET_BY_US
from mfsd.policy.types import Stage

ECN_CAPABLE: Final = 2
"""ECT(0) in the two bits of a traffic class below the DSCP, as in UCX's default of 106."""


class Library(NamedTuple):
    name: str
    traffic_class: str
    """Variable with the class of RoCE packets: DSCP * 4, plus the ECN bits."""
    service_level: str
    """Variable with the service level on InfiniBand; empty: there is none."""
    stage: Stage
    """Stage of most of its traffic."""
    seen: bool
    """It posts through libibverbs: the preloaded library marks queue pairs with a rule, whatever the variable is."""
    otherwise: str = ""
    """Variable that it reads if its own is not set."""
    level_otherwise: str = ""
    """The same for service levels."""
    infiniband_breaks: bool = False
    """Some versions end the program with an error if their traffic class is set and the port is InfiniBand."""


LIBRARIES: Final = (
    Library("NCCL", "NCCL_IB_TC", "NCCL_IB_SL", Stage.COLLECTIVE, seen=True),
    Library(
        "NCCL's GIN and DeepEP V2",
        "NCCL_GIN_IB_TC",
        "",
        Stage.COLLECTIVE,
        seen=False,
        otherwise="NCCL_IB_TC",
        level_otherwise="NCCL_IB_SL",
    ),
    Library(
        "NVSHMEM and DeepEP",
        "NVSHMEM_IB_TRAFFIC_CLASS",
        "NVSHMEM_IB_SL",
        Stage.COLLECTIVE,
        seen=False,
        infiniband_breaks=True,
    ),
    Library("UCCL-EP", "UCCL_IB_TC", "UCCL_IB_SL", Stage.COLLECTIVE, seen=True),
    Library("MoRI", "MORI_RDMA_TC", "MORI_RDMA_SL", Stage.COLLECTIVE, seen=False),
    Library("Mooncake", "MC_IB_TC", "MC_IB_SL", Stage.P2D, seen=True),
    Library("UCX and NIXL", "UCX_IB_TRAFFIC_CLASS", "UCX_IB_SL", Stage.P2D, seen=False),
    Library("MoRI-IO", "MORI_IO_TC", "MORI_IO_SL", Stage.P2D, seen=True),
)


class Variable(NamedTuple):
    library: Library
    name: str
    value: str
    class_name: str
    """Name of the class in the policy."""


def traffic_class(dscp: int) -> int:
    """Returns the value of the variables for a DSCP."""
    return dscp << 2 | ECN_CAPABLE


def traffic_classes(dscp_by_stage: Mapping[Stage, int | None]) -> dict[str, str]:
    """Returns variable and value for each library whose stage has a DSCP."""
    found = {}
    for library in LIBRARIES:
        dscp = dscp_by_stage.get(library.stage)
        if dscp is not None:
            found[library.traffic_class] = str(traffic_class(dscp))
    return found


def service_levels(profile: Profile) -> str:
    """Returns MFS_SERVICE_LEVELS under this profile. The service level of each class is its priority."""
    return ",".join(f"{one.dscp}:{one.priority}" for one in profile.classes)


def dangerous_classes(ports: Sequence[str]) -> dict[str, str]:
    """Returns the class variables that must not be set on a host with these InfiniBand ports, and why. One port is
    enough, because a library may use any port of its host."""
    return {
        one.traffic_class: f"{ports[0]} of this host is InfiniBand, where a traffic class ends some versions of "
        f"{one.name} with an error; --infiniband gives {one.service_level} in its place"
        for one in LIBRARIES
        if one.infiniband_breaks and ports
    }


def operators(environ: Mapping[str, str], files: Mapping[str, Setting]) -> dict[str, str]:
    """Returns the variables that the operator has set, and in words how. Those that mfs-run has set are left out."""
    ours = environ.get(SET_BY_US, "").split()
    found = {name: f"{one.file} sets {name}={one.value}" for name, one in files.items()}
    return found | {name: f"{name}={value} is set" for name, value in environ.items() if value and name not in ours}


def kept(names: Collection[str], of_operator: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that would override a setting of the operator, and why."""
    found = {name: of_operator[name] for name in names if name in of_operator}
    for one in LIBRARIES:
        if one.traffic_class in names and one.otherwise in of_operator:
            found.setdefault(one.traffic_class, f"{of_operator[one.otherwise]}, and {one.name} goes by that, too")
    return found


def dscps(profile: Profile) -> dict[Stage, int]:
    """Returns the DSCP of each stage, for libraries whose transfers cannot be told apart."""
    table = wire_table(profile)
    return {stage: table.dscp[classes[0]] for stage, classes in table.stages.items()}


def levels(profile: Profile) -> dict[Stage, int]:
    """Returns the service level of each stage, which is the priority of its class."""
    priority = {fabric_class.dscp: fabric_class.priority for fabric_class in profile.classes}
    return {stage: priority[dscp] for stage, dscp in dscps(profile).items()}


def variables(profile: Profile, *, infiniband: bool = False) -> list[Variable]:
    """Returns the variables that every library should get under this profile. On InfiniBand these are service levels,
    which are the profile's priorities; a library without a variable for them is left out."""
    of_stage = dscps(profile)
    classes = {fabric_class.dscp: fabric_class for fabric_class in profile.classes}
    found = []
    for library in LIBRARIES:
        fabric_class = classes[of_stage[library.stage]]
        name = library.service_level if infiniband else library.traffic_class
        value = fabric_class.priority if infiniband else traffic_class(fabric_class.dscp)
        if name:
            found.append(Variable(library, name, str(value), fabric_class.name))
    return found
