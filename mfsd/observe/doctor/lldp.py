"""What the switch at the other end of the cable says about itself, as lldpd received it (`lldpctl -f json0`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

OUI_8021 = "00,80,C2"
SUBTYPE_PFC = 11
"""IEEE 802.1Qaz, annex D: the Priority-based Flow Control Configuration TLV."""


class Neighbour(Struct, frozen=True):
    """The other end. ``pfc``: priorities that it pauses; None: it announces none by IEEE DCBX."""

    interface: str
    name: str
    port: str
    pfc: tuple[int, ...] | None


def parse_neighbours(text: str) -> list[Neighbour]:
    """Reads the output of ``lldpctl -f json0``. Raises ValueError for anything else."""
    try:
        root = msgspec.json.decode(text)
        entries = [i for lldp in root["lldp"] for i in lldp.get("interface", [])]
        return [_neighbour(entry) for entry in entries]
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not the output of lldpctl -f json0: {error!r}") from error


def _neighbour(entry: dict[str, Any]) -> Neighbour:
    chassis = (entry.get("chassis") or [{}])[0]
    port = (entry.get("port") or [{}])[0]
    name = _value(chassis.get("name")) or _value(chassis.get("id"))
    return Neighbour(str(entry["name"]), name, _value(port.get("descr")) or _value(port.get("id")), _pfc(entry))


def _value(values: Any) -> str:
    return str(values[0].get("value", "")) if values else ""


def _pfc(entry: dict[str, Any]) -> tuple[int, ...] | None:
    """The value has two bytes: willing, MACsec bypass and number of classes; then one bit for each priority."""
    for tlv in _unknown_tlvs(entry):
        if str(tlv.get("oui", "")).upper() == OUI_8021 and int(tlv.get("subtype", -1)) == SUBTYPE_PFC:
            data = bytes.fromhex(str(tlv.get("value", "")).replace(",", ""))
            if len(data) >= 2:
                return tuple(p for p in range(8) if data[1] >> p & 1)
    return None


def _unknown_tlvs(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in entry.get("unknown-tlvs", []):
        yield from group.get("unknown-tlv", [])
