"""Asks libibverbs through pyverbs and prints one JSON object. Started by mfsd.verbs.ask with the distribution's Python.

    python3 -I program.py devices
    python3 -I program.py message DEVICE PORT GID_INDEX DSCP

It needs only pyverbs and the standard library, and uses only what pyverbs has had since rdma-core 35.
"""

import contextlib
import ipaddress
import json
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
GBIT_PER_LANE = {1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100, 256: 200}
"""As in the kernel's file `rate`, so that both sources give the same number."""
STATES = {1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE"}
LINKS = {1: "InfiniBand", 2: "Ethernet"}
GID_TYPES = {0: "IB/RoCE v1", 1: "RoCE v2"}
"""As in ibv_query_gid_type: InfiniBand's and RoCE v1's are the same."""
NO_GID = ipaddress.IPv6Address(0)
MESSAGE = b"mfsctl doctor --verbs".ljust(4096, b".")
MESSAGE_S = 5.0
CAPTURE_S = 0.2
"""How long packets are read after the message is complete."""
ETH_P_ALL = 3
OUTGOING = 4


def devices() -> dict[str, Any]:
    from pyverbs.device import Context, get_device_list
    from pyverbs.pyverbs_error import PyverbsError

    found = {}
    try:
        listed = get_device_list()
    except PyverbsError:
        listed = []  # pyverbs raises this where the kernel has no RDMA at all
    for device in listed:
        name = device.name.decode()
        try:
            with Context(name=name) as context:
                found[name] = _device(context)
        except PyverbsError as error:
            found[name] = {"error": one_line(error)}
    return {"devices": found}


def _device(context: Any) -> dict[str, Any]:
    about = context.query_device()
    return {
        "firmware": about.fw_version,
        "capabilities": {
            name: getattr(about, name) for name in ("max_qp", "max_qp_wr", "max_mr", "max_cq", "device_cap_flags")
        },
        "ports": {number: _port(context, number) for number in range(1, about.phys_port_cnt + 1)},
    }


def _port(context: Any, number: int) -> dict[str, Any]:
    port = context.query_port(number)
    gbit_per_s = LANES.get(port.active_width, 0) * GBIT_PER_LANE.get(port.active_speed, 0)
    gids = {}
    for index in range(port.gid_tbl_len):
        gid = ipaddress.IPv6Address(context.query_gid(number, index).gid)
        if gid != NO_GID:
            gids[index] = {"gid": str(gid), "type": GID_TYPES.get(context.query_gid_type(number, index), "unknown")}
    return {
        "state": STATES.get(port.state, "unknown"),
        "link": LINKS.get(port.link_layer, "unknown"),
        "rate_bytes_per_s": int(gbit_per_s * 1e9 / 8),
        "mtu_bytes": 128 << port.active_mtu,
        "gids": gids,
    }


def message(name: str, number: int, index: int, dscp: int) -> dict[str, Any]:
    """Makes a queue pair, connects it to itself, and writes once through it with the DSCP in its address vector."""
    from pyverbs.addr import AHAttr, GlobalRoute
    from pyverbs.cq import CQ
    from pyverbs.device import Context
    from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

    access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
    with Context(name=name) as context, PD(context) as pd, CQ(context, 4) as cq:
        port, gid = context.query_port(number), context.query_gid(number, index)
        attributes = QPAttr(port_num=number)
        attributes.qp_access_flags = access
        capabilities = QPCap(max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        made = QPInitAttr(qp_type=IBV_QPT_RC, scq=cq, rcq=cq, cap=capabilities)
        with MR(pd, 2 * len(MESSAGE), access) as memory, QP(pd, made, attributes) as pair:
            route = GlobalRoute(dgid=gid, sgid_index=index, hop_limit=64)
            route.traffic_class = dscp << 2
            attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=number, dlid=port.lid)
            attributes.path_mtu = port.active_mtu
            attributes.dest_qp_num = pair.qp_num
            attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
            attributes.timeout, attributes.retry_cnt, attributes.rnr_retry, attributes.min_rnr_timer = 14, 3, 3, 12
            address = ipaddress.IPv6Address(gid.gid)
            with capturing() as packets:
                pair.to_rts(attributes)
                _write(pair, cq, memory)
                seen = dscps_of(packets, address) if packets is not None else None
    return {"bytes": len(MESSAGE), "dscps": seen}


def _write(pair: Any, cq: Any, memory: Any) -> None:
    from pyverbs.enums import IBV_WC_SUCCESS, IBV_WR_RDMA_WRITE
    from pyverbs.wr import SGE, SendWR

    memory.write(MESSAGE, len(MESSAGE))
    work = SendWR(opcode=IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(memory.buf, len(MESSAGE), memory.lkey)])
    work.set_wr_rdma(memory.rkey, memory.buf + len(MESSAGE))
    pair.post_send(work)
    deadline_s = time.monotonic() + MESSAGE_S
    while True:
        count, done = cq.poll(1)
        if count:
            break
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the write was not complete after {MESSAGE_S:g} s")
        time.sleep(0.001)
    if done[0].status != IBV_WC_SUCCESS:
        raise OSError(f"the write ended with status {done[0].status} (enum ibv_wc_status)")
    if memory.read(len(MESSAGE), len(MESSAGE)) != MESSAGE:
        raise OSError("the write is complete, and other bytes have arrived")


@contextlib.contextmanager
def capturing() -> Iterator[Any]:
    """Yields a socket with packets of all interfaces, or None if this user may not see them."""
    try:
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    except PermissionError:
        yield None
        return
    with packets:
        yield packets


def dscps_of(packets: Any, address: Any) -> list[int]:
    """DSCPs of packets from this address to itself. None are seen if the NIC loops them back internally."""
    found = set()
    packets.settimeout(CAPTURE_S)
    deadline_s = time.monotonic() + CAPTURE_S
    with contextlib.suppress(socket.timeout):  # TimeoutError since Python 3.10
        while time.monotonic() < deadline_s:
            packet, origin = packets.recvfrom(64)
            if origin[2] != OUTGOING and ends_of(packet) == (address, address):
                found.add(traffic_class(packet) >> 2)
    return sorted(found)


def ends_of(packet: bytes) -> Any:
    """Source and destination as GIDs. None for anything but an IP packet."""
    if len(packet) >= 20 and packet[0] >> 4 == 4:
        return tuple(ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + packet[at : at + 4]) for at in (12, 16))
    if len(packet) >= 40 and packet[0] >> 4 == 6:
        return tuple(ipaddress.IPv6Address(packet[at : at + 16]) for at in (8, 24))
    return None


def traffic_class(packet: bytes) -> int:
    if packet[0] >> 4 == 4:
        return packet[1]
    return int(struct.unpack("!I", packet[:4])[0] >> 20 & 0xFF)


def one_line(error: BaseException) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__


def main(arguments: "list[str]") -> "dict[str, Any]":
    """The answer. `missing`: pyverbs cannot be used here. `error`: it can be, but the call failed."""
    where = f"Python {sys.version.split()[0]} ({sys.executable})"
    try:
        import pyverbs.device  # noqa: F401
    except ModuleNotFoundError:
        return {"missing": f"{where} has no pyverbs"}
    except ImportError as error:
        return {"missing": f"{where}: pyverbs does not load: {one_line(error)}"}
    try:
        if arguments[0] == "devices":
            return {"python": where, **devices()}
        return {"python": where, **message(arguments[1], *(int(number) for number in arguments[2:5]))}
    except (AttributeError, ImportError, TypeError) as error:
        return {"missing": f"{where}: pyverbs is of another version: {one_line(error)}"}
    except Exception as error:  # pyverbs' own errors and the kernel's
        return {"python": where, "error": one_line(error)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
