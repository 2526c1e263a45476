"""Data Center Bridging over rtnetlink: codecs for messages for which pyroute2 has only constants.

Covers the IEEE 802.1Qaz settings that a RoCE host needs: DCBX mode, ETS, PFC, the APP table (DSCP to priority) and its
trust table. Layouts are those of the kernel's uapi header <linux/dcbnl.h>; integers are in host byte order.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable

from msgspec import Struct
from pyroute2 import netns as namespaces
from pyroute2.netlink import NLM_F_REQUEST, NLMSG_ERROR, nla, nlmsg
from pyroute2.netlink.rtnl import RTM_GETDCB, RTM_SETDCB

CMD_IEEE_SET, CMD_IEEE_GET, CMD_GDCBX, CMD_SDCBX, CMD_IEEE_DEL = 20, 21, 22, 23, 27
DCBX_HOST, DCBX_LLD_MANAGED, DCBX_CEE, DCBX_IEEE = 0x01, 0x02, 0x04, 0x08
SELECTOR_DSCP, SELECTOR_PCP = 5, 24
TSA_STRICT, TSA_ETS = 0, 2

Exchange = Callable[[bytes], bytes]
"""Sends one netlink message and returns the answer. OSError."""


class _Ets(nla):  # type: ignore[misc]
    fields = (
        ("willing", "B"),
        ("ets_cap", "B"),
        ("cbs", "B"),
        ("tc_tx_bw", "8B"),
        ("tc_rx_bw", "8B"),
        ("tc_tsa", "8B"),
        ("prio_tc", "8B"),
        ("tc_reco_bw", "8B"),
        ("tc_reco_tsa", "8B"),
        ("reco_prio_tc", "8B"),
    )


class _Pfc(nla):  # type: ignore[misc]
    fields = (
        ("pfc_cap", "B"),
        ("pfc_en", "B"),
        ("mbc", "B"),
        ("pad1", "B"),
        ("delay", "H"),
        ("pad2", "H"),
        ("requests", "8Q"),
        ("indications", "8Q"),
    )


class _App(nla):  # type: ignore[misc]
    fields = (("selector", "B"), ("priority", "B"), ("protocol", "H"))


class _AppTable(nla):  # type: ignore[misc]
    prefix = "DCB_APP_"
    nla_map = (("DCB_APP_UNSPEC", "none"), ("DCB_APP_IEEE", "app"), ("DCB_APP_DCB", "app"))
    app = _App


class _TrustTable(nla):  # type: ignore[misc]
    prefix = "DCB_TRUST_"
    nla_map = (("DCB_TRUST_UNSPEC", "none"), ("DCB_TRUST_IEEE", "uint8"), ("DCB_TRUST_DCB", "uint8"))


class _Ieee(nla):  # type: ignore[misc]
    prefix = "DCB_IEEE_"
    nla_map = (
        ("DCB_IEEE_UNSPEC", "none"),
        ("DCB_IEEE_ETS", "ets"),
        ("DCB_IEEE_PFC", "pfc"),
        ("DCB_IEEE_APP_TABLE", "apps"),
        ("DCB_IEEE_PEER_ETS", "ets"),
        ("DCB_IEEE_PEER_PFC", "pfc"),
        ("DCB_IEEE_PEER_APP", "apps"),
        ("DCB_IEEE_MAXRATE", "hex"),
        ("DCB_IEEE_QCN", "hex"),
        ("DCB_IEEE_QCN_STATS", "hex"),
        ("DCB_IEEE_BUFFER", "hex"),
        ("DCB_IEEE_TRUST_TABLE", "trust"),
        ("DCB_IEEE_REWR_TABLE", "hex"),
    )
    ets = _Ets
    pfc = _Pfc
    apps = _AppTable
    trust = _TrustTable


def _attributes(ieee: str) -> tuple[tuple[str, str], ...]:
    unused = (
        "STATE",
        "PFC_STATE",
        "PFC_CFG",
        "NUM_TC",
        "PG_CFG",
        "SET_ALL",
        "PERM_HWADDR",
        "CAP",
        "NUMTCS",
        "BCN",
        "APP",
    )
    return (
        ("DCB_ATTR_UNSPEC", "none"),
        ("DCB_ATTR_IFNAME", "asciiz"),
        *((f"DCB_ATTR_{name}", "hex") for name in unused),
        ("DCB_ATTR_IEEE", ieee),
        ("DCB_ATTR_DCBX", "uint8"),
        ("DCB_ATTR_FEATCFG", "hex"),
        ("DCB_ATTR_CEE", "hex"),
    )


class DcbMessage(nlmsg):  # type: ignore[misc]
    """A request, or the answer to a request that reads."""

    prefix = "DCB_ATTR_"
    fields = (("family", "B"), ("cmd", "B"), ("dcb_pad", "H"))
    nla_map = _attributes("ieee")
    ieee = _Ieee


class DcbVerdict(nlmsg):  # type: ignore[misc]
    """The answer to a request that writes. Its attribute holds one byte, a negative errno."""

    prefix = "DCB_ATTR_"
    fields = DcbMessage.fields
    nla_map = _attributes("uint8")


class Ets(Struct, frozen=True):
    """Traffic class of each priority, how each class is served, and its share if it is served by weight."""

    prio_tc: tuple[int, ...]
    tc_tsa: tuple[int, ...]
    tc_bw_percent: tuple[int, ...]
    traffic_classes: int = 8


class DcbState(Struct, frozen=True):
    """The settings that the device reported. None: the driver does not have the setting."""

    ets: Ets | None
    pfc: tuple[int, ...] | None
    pfc_classes: int
    dscp_to_priority: dict[int, int]
    trust: tuple[int, ...] | None
    peer_pfc: tuple[int, ...] | None
    """Priorities that the other end of the cable announced by DCBX; None if it announced none."""


class DcbLink:
    """DCB settings of one interface. Every method raises OSError with the kernel's reason."""

    def __init__(self, interface: str, exchange: Exchange) -> None:
        self.interface = interface
        self._exchange = exchange

    def read(self) -> DcbState:
        answer = self._ask(RTM_GETDCB, CMD_IEEE_GET)
        ieee = answer.get_attr("DCB_ATTR_IEEE")
        if ieee is None:
            raise OSError(errno.EOPNOTSUPP, "the driver reports no IEEE 802.1Qaz settings")
        ets, pfc = ieee.get_attr("DCB_IEEE_ETS"), ieee.get_attr("DCB_IEEE_PFC")
        peer = ieee.get_attr("DCB_IEEE_PEER_PFC")
        trust = ieee.get_attr("DCB_IEEE_TRUST_TABLE")
        apps = ieee.get_attr("DCB_IEEE_APP_TABLE")
        entries = [value for _, value in apps["attrs"]] if apps else []
        return DcbState(
            ets=Ets(tuple(ets["prio_tc"]), tuple(ets["tc_tsa"]), tuple(ets["tc_tx_bw"]), ets["ets_cap"])
            if ets
            else None,
            pfc=_bits(pfc["pfc_en"]) if pfc else None,
            pfc_classes=pfc["pfc_cap"] if pfc else 0,
            dscp_to_priority={a["protocol"]: a["priority"] for a in entries if a["selector"] == SELECTOR_DSCP},
            trust=tuple(value for _, value in trust["attrs"]) if trust else None,
            peer_pfc=_bits(peer["pfc_en"]) if peer else None,
        )

    def read_dcbx(self) -> int:
        """Returns the DCBX mode bits."""
        return int(self._ask(RTM_GETDCB, CMD_GDCBX).get_attr("DCB_ATTR_DCBX") or 0)

    def write_dcbx(self, mode: int) -> None:
        answer = self._ask(RTM_SETDCB, CMD_SDCBX, [("DCB_ATTR_DCBX", mode)])
        if answer.get_attr("DCB_ATTR_DCBX"):
            raise OSError(errno.EPERM, f"the device kept its own DCBX mode instead of {mode:#x}")

    def write_ets(self, ets: Ets) -> None:
        """Replaces the mapping and the shares. Other fields of the attribute keep the driver's values."""
        mine = {
            "willing": 0,
            "tc_tx_bw": ets.tc_bw_percent,
            "tc_tsa": ets.tc_tsa,
            "prio_tc": ets.prio_tc,
        }
        self._set(CMD_IEEE_SET, "DCB_IEEE_ETS", self._fields("DCB_IEEE_ETS", _Ets) | mine)

    def write_pfc(self, priorities: Iterable[int]) -> None:
        """Replaces the set of pausable priorities. Delay and the other fields keep their values."""
        mine = {"pfc_en": sum(1 << p for p in priorities)}
        self._set(CMD_IEEE_SET, "DCB_IEEE_PFC", self._fields("DCB_IEEE_PFC", _Pfc) | mine)

    def _fields(self, attribute: str, layout: type[nla]) -> dict[str, object]:
        ieee = self._ask(RTM_GETDCB, CMD_IEEE_GET).get_attr("DCB_ATTR_IEEE")
        value = ieee.get_attr(attribute) if ieee else None
        if value is None:
            raise OSError(errno.EOPNOTSUPP, f"the driver reports no {attribute.removeprefix('DCB_IEEE_')} settings")
        return {name: value[name] for name, _ in layout.fields}

    def add_dscps(self, dscp_to_priority: dict[int, int]) -> None:
        self._apps(CMD_IEEE_SET, dscp_to_priority)

    def remove_dscps(self, dscp_to_priority: dict[int, int]) -> None:
        self._apps(CMD_IEEE_DEL, dscp_to_priority)

    def write_trust(self, selectors: Iterable[int]) -> None:
        kinds = {SELECTOR_PCP: "DCB_TRUST_DCB"}
        self._set(
            CMD_IEEE_SET,
            "DCB_IEEE_TRUST_TABLE",
            {"attrs": [(kinds.get(s, "DCB_TRUST_IEEE"), s) for s in selectors]},
        )

    def _apps(self, command: int, dscp_to_priority: dict[int, int]) -> None:
        if dscp_to_priority:
            entries = [
                ("DCB_APP_IEEE", {"selector": SELECTOR_DSCP, "priority": p, "protocol": d})
                for d, p in sorted(dscp_to_priority.items())
            ]
            self._set(command, "DCB_IEEE_APP_TABLE", {"attrs": entries})

    def _set(self, command: int, attribute: str, value: dict[str, object]) -> None:
        answer = self._ask(RTM_SETDCB, command, [("DCB_ATTR_IEEE", {"attrs": [(attribute, value)]})])
        verdict = answer.get_attr("DCB_ATTR_IEEE") or 0
        if verdict:
            code = 256 - verdict
            raise OSError(code, os.strerror(code))

    def _ask(self, kind: int, command: int, attributes: Iterable[tuple[str, object]] = ()) -> nlmsg:
        answer = self._exchange(encode(kind, command, self.interface, attributes))
        return decode(answer)


def encode(kind: int, command: int, interface: str, attributes: Iterable[tuple[str, object]] = ()) -> bytes:
    """Returns one request as bytes for the kernel."""
    message = DcbMessage()
    message["family"] = socket.AF_UNSPEC
    message["cmd"] = command
    message["attrs"] = [("DCB_ATTR_IFNAME", interface), *attributes]
    message["header"]["type"] = kind
    message["header"]["flags"] = NLM_F_REQUEST
    message["header"]["sequence_number"] = 1
    message.encode()
    return bytes(message.data)


def decode(answer: bytes) -> nlmsg:
    """Returns the message in an answer. OSError if the kernel refused the request or the bytes are no answer."""
    if len(answer) < 20:
        raise OSError(errno.EIO, "the kernel's DCB answer is truncated")
    kind = struct.unpack_from("H", answer, 4)[0]
    if kind == NLMSG_ERROR:
        code = -struct.unpack_from("i", answer, 16)[0]
        raise OSError(code, os.strerror(code))
    if kind not in (RTM_GETDCB, RTM_SETDCB):
        raise OSError(errno.EIO, f"message type {kind} is not a DCB answer")
    message = DcbMessage(answer) if kind == RTM_GETDCB else DcbVerdict(answer)
    message.decode()
    return message


def kernel_exchange(netns: str | None = None) -> Exchange:
    """Returns an exchange with the kernel, in a named network namespace if given. It opens a socket for each request,
    because requests are rare."""

    def exchange(request: bytes) -> bytes:
        if netns:
            namespaces.pushns(netns)
        try:
            channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        finally:
            if netns:
                namespaces.popns()
        with channel:
            channel.settimeout(5)
            channel.bind((0, 0))
            channel.send(request)
            return channel.recv(1 << 16)

    return exchange


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(p for p in range(8) if mask >> p & 1)
