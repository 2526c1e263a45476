"""PFC at both ends of the cable: what the NIC pauses and what the switch says it pauses (DCBX, LLDP)."""

from __future__ import annotations

from collections.abc import Iterator

from mfsd.fabric.dcb import DcbLink, kernel_exchange
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, NoAnswer
from mfsd.observe.doctor.lldp import Neighbour, parse_neighbours

TITLE = "PFC at both ends"

DIFFERS = Kind(
    "pfc.ends-differ",
    "fail",
    "NIC and switch pause different priorities: one side drops what the other believes lossless.",
    "render the switch port from the same profile (mfsctl switch render), and: mfsctl host apply --dev IF",
)
SWITCH_DIFFERS = Kind(
    "pfc.switch-differs",
    "fail",
    "The switch port pauses other priorities than the policy's lossless ones.",
    "render the switch port from the same profile and load it; compare digests (mfsctl switch policy NAME)",
)
UNSEEN = Kind(
    "pfc.peer-unseen",
    "info",
    "The switch port did not announce what it pauses, so only this end was checked.",
    "run lldpd here and let the switch send LLDP with the DCBX PFC TLV; or compare digests by hand",
)
UNREADABLE = Kind(
    "pfc.lldp-unreadable",
    "unknown",
    "lldpd runs, but its neighbours cannot be read.",
    "run the doctor as root or as a member of lldpd's group",
)
AGREES = Kind("pfc.agrees", "ok", "The switch port announces the policy's lossless priorities.")


def run(host: Host) -> Iterator[Finding]:
    received: dict[str, Neighbour] = {}
    trouble = ""
    if host.links:
        try:
            received = {n.interface: n for n in parse_neighbours(host.run(["lldpctl", "-f", "json0"]))}
        except (NoAnswer, ValueError) as error:
            trouble = str(error)
    for interface in host.links:
        own, announced = _dcb(host, interface)
        neighbour = received.get(interface)
        if announced is None and neighbour is not None:
            announced = neighbour.pfc
        where = f"{neighbour.name} {neighbour.port}" if neighbour else "the switch port"
        if announced is None:
            reason = trouble or (f"{where} announces no PFC" if neighbour else "lldpd has heard no neighbour")
            yield (UNREADABLE if "ermission" in trouble else UNSEEN)(reason, interface)
        else:
            yield from _compare(host, interface, own, announced, where)


def _dcb(host: Host, interface: str) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """PFC priorities of this end and, where DCBX runs in the kernel or the firmware, of the other."""
    try:
        state = DcbLink(interface, host.exchange or kernel_exchange()).read()
    except OSError:
        return None, None
    return state.pfc, state.peer_pfc


def _compare(
    host: Host, interface: str, own: tuple[int, ...] | None, announced: tuple[int, ...], where: str
) -> Iterator[Finding]:
    wanted = host.profile.lossless_priorities
    if own is not None and own != announced:
        yield DIFFERS(f"this end pauses {_list(own)}, {where} pauses {_list(announced)}", interface)
    elif announced != wanted:
        yield SWITCH_DIFFERS(
            f"{where} pauses {_list(announced)}, policy {host.policy_name}: {_list(wanted)}", interface
        )
    else:
        yield AGREES(f"{where} pauses {_list(announced)}", interface)


def _list(priorities: tuple[int, ...]) -> str:
    return ", ".join(map(str, priorities)) or "nothing"
