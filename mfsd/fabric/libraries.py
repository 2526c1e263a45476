"""Libraries that read the class of their packets from a variable, and what a fabric policy says these should be.

One variable for each library, so that one policy file sets all of them: for programs that mark without a daemon, and
for what posts past libibverbs, where no daemon and no preloaded library can.
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
"""ECT(0), in the two bits of a traffic class below the DSCP: as UCX's default of 106 has it."""


class Library(NamedTuple):
    name: str
    traffic_class: str
    """The variable that RoCE packets get their class from: DSCP * 4, and the ECN bits."""
    service_level: str
    """The variable of InfiniBand's counterpart; empty: it has none of its own."""
    stage: Stage
    """What most of its traffic is for."""
    seen: bool
    """It posts through libibverbs: the preloaded library marks what a rule knows, whatever the variable says."""
    otherwise: str = ""
    """The variable that it goes by where its own is not set."""
    level_otherwise: str = ""
    """The same for service levels."""
    infiniband_breaks: bool = False
    """On an InfiniBand port versions of it end the program with an error where its traffic class is set."""


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
    """Of the policy."""


def traffic_class(dscp: int) -> int:
    """What the variables take for a DSCP."""
    return dscp << 2 | ECN_CAPABLE


def traffic_classes(dscp_by_stage: Mapping[Stage, int | None]) -> dict[str, str]:
    """Variable and value of each library whose stage has a DSCP."""
    found = {}
    for library in LIBRARIES:
        dscp = dscp_by_stage.get(library.stage)
        if dscp is not None:
            found[library.traffic_class] = str(traffic_class(dscp))
    return found


def service_levels(profile: Profile) -> str:
    """What MFS_SERVICE_LEVELS is under this profile: the priority of each class is its service level, too."""
    return ",".join(f"{one.dscp}:{one.priority}" for one in profile.classes)


def dangerous_classes(ports: Sequence[str]) -> dict[str, str]:
    """The variables of classes that must not be set on a host with these ports of InfiniBand, and why. One port is
    enough: a library may take any port of its host."""
    return {
        one.traffic_class: f"{ports[0]} of this host is InfiniBand, where a traffic class ends some versions of "
        f"{one.name} with an error; --infiniband gives {one.service_level} in its place"
        for one in LIBRARIES
        if one.infiniband_breaks and ports
    }


def operators(environ: Mapping[str, str], files: Mapping[str, Setting]) -> dict[str, str]:
    """The variables that the operator has set, and how: in words. Those that mfs-run has set are not among them."""
    ours = environ.get(SET_BY_US, "").split()
    found = {name: f"{one.file} sets {name}={one.value}" for name, one in files.items()}
    return found | {name: f"{name}={value} is set" for name, value in environ.items() if value and name not in ours}


def kept(names: Collection[str], of_operator: Mapping[str, str]) -> dict[str, str]:
    """Those of these variables that would go before what the operator has set, and why."""
    found = {name: of_operator[name] for name in names if name in of_operator}
    for one in LIBRARIES:
        if one.traffic_class in names and one.otherwise in of_operator:
            found.setdefault(one.traffic_class, f"{of_operator[one.otherwise]}, and {one.name} goes by that, too")
    return found


def dscps(profile: Profile) -> dict[Stage, int]:
    """The DSCP in which a stage travels where transfers of one library cannot be told apart."""
    table = wire_table(profile)
    return {stage: table.dscp[classes[0]] for stage, classes in table.stages.items()}


def levels(profile: Profile) -> dict[Stage, int]:
    """The service level of each stage, which is the priority of its class."""
    priority = {fabric_class.dscp: fabric_class.priority for fabric_class in profile.classes}
    return {stage: priority[dscp] for stage, dscp in dscps(profile).items()}


def variables(profile: Profile, *, infiniband: bool = False) -> list[Variable]:
    """What every library should be given under this profile. InfiniBand has service levels in place of DSCPs: the
    profile's priorities. A library without a variable for them is left out there."""
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
