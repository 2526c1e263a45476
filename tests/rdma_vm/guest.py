"""What is tested on the kernel's own Soft-RoCE: shim, daemon and lanes with real RoCE v2 packets.

Runs inside the machine of `boot`, as its only command; prints one line a check and ends with 1 if one failed.
`python tests/rdma_vm/guest.py [NCCL_NET ARGUMENTS...]` also runs NCCL's own InfiniBand transport.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tests.support.daemon  # noqa: E402
from bench.fabric.lab import slow_profile  # noqa: E402
from mfsd.fabric.plan import make_plan  # noqa: E402
from mfsd.fabric.systems import linux  # noqa: E402
from mfsd.fabric.systems.linux.qdisc import interface_index, open_netlink, remove_queues  # noqa: E402
from tests.support.daemon import Daemon, eventually  # noqa: E402
from tests.support.under_mfs import under_mfs  # noqa: E402

ROCE_PORT = 4791
GID_INDEX = "1"
UPPER, LOWER = 2, 5  # classes of the two lanes
DSCP = [56, 48, 40, 32, 24, 16, 8, 0]  # as in the profile paper-k8
LINK_GBPS = 0.05  # what one emulated processor, shared by four programs, fills with time to spare
SHARE_LEAST = 0.9
WAIT_S = tests.support.daemon.TIMEOUT_S = 240.0  # the processor is emulated, and the host may be busy
LANES = (("ib_write_bw", UPPER), ("ib_send_bw", LOWER))


def rules(action: str) -> str:
    """One lane for each of two programs; everything else asks for permits, too."""
    text = '[wire]\nprofile = "paper-k8"\n'
    for process, wire_class in LANES:
        text += f'[[rule]]\nprocess = "{process}"\naction = "{action}"\nstage = "p2d"\nclass = {wire_class}\n'
    return text + f'[[rule]]\naction = "{action}"\nstage = "p2d"\n'


class Pair:
    """Server on rxe1 and client on rxe0 of one program, both under MFS."""

    def __init__(self, daemon: Daemon, port: int, *command: str, wait: bool = True) -> None:
        self.server = self._start(daemon, "rxe1", port, command)
        self._wait_listening(port)
        self.client = self._start(daemon, "rxe0", port, (*command, "127.0.0.1"))
        self.output = ""
        if wait:
            self.finish()

    def _start(self, daemon: Daemon, device: str, port: int, command: tuple[str, ...]) -> subprocess.Popen[str]:
        program, *options = command
        gid = ("-g", GID_INDEX) if program == "ibv_rc_pingpong" else ("-x", GID_INDEX)
        arguments = (program, "-d", device, *gid, "-p", str(port), *options)
        return subprocess.Popen(
            under_mfs(daemon.socket, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def _wait_listening(self, port: int) -> None:
        def listens() -> bool:
            assert self.server.poll() is None, f"the server ended: {self.server.communicate()[0]}"
            tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
            rows = [line.split() for line in tables.splitlines()[1:] if line.strip().startswith(tuple("0123456789"))]
            return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)

        until(listens, f"the server on port {port}")

    def finish(self) -> None:
        texts = [process.communicate(timeout=WAIT_S)[0] for process in (self.client, self.server)]
        self.output = "\n".join(texts)
        assert self.client.returncode == self.server.returncode == 0, self.output[-2000:]

    def stop(self) -> None:
        for process in (self.client, self.server):
            process.kill()
            process.communicate()

    def queue_pairs(self) -> set[int]:
        return {int(number, 16) for number in re.findall(r"QPN 0x([0-9a-f]+)", self.output)}


def until(poll: Callable[[], bool], what: str) -> None:
    eventually(poll, what, WAIT_S, pause_s=0.02)


@contextlib.contextmanager
def tcpdump(interface: str, file: Path) -> Iterator[None]:
    """Writes the RoCE v2 packets of an interface into a file until left."""
    options = ("-n", "-s", "96", "--immediate-mode", "-U", "-Z", "root", "-i", interface, "-w", str(file))
    process = subprocess.Popen(["tcpdump", *options, "udp", "port", str(ROCE_PORT)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "listening" in line:
            break
    try:
        yield
    finally:
        process.terminate()
        process.wait(WAIT_S)


def read_packets(file: Path) -> list[tuple[int, str]]:
    """(DSCP, sender's address) of every RoCE v2 packet over IPv4 in a pcap file."""
    data = file.read_bytes()
    found, at = [], 24
    while at + 16 <= len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        packet = data[at + 16 : at + 16 + length]
        at += 16 + length
        if packet[12:14] == b"\x08\0":
            found.append((packet[15] >> 2, ".".join(map(str, packet[26:30]))))
    return found


def both_ways(file: Path) -> bool:
    return len({sender for _, sender in read_packets(file)}) == 2


def granted(daemon: Daemon) -> tuple[int, int]:
    """Permits and their bytes since the daemon started."""
    classes = [c for nic in daemon.status().nics for c in nic.classes]
    return sum(c.grants for c in classes), sum(c.granted_bytes for c in classes)


# ---- checks --------------------------------------------------------------------------------------


def doctor(folder: Path) -> str:
    with Daemon(folder, rules("hold")) as daemon:
        command: tuple[str, ...] = (
            sys.executable,
            "-m",
            "mfsd.cli.ctl",
            "--socket",
            str(daemon.socket),
            "doctor",
            "--verbs",
            "--json",
        )
        command += ("--policy", "paper-k8")
        result = subprocess.run(command, capture_output=True, text=True, timeout=3 * WAIT_S, check=False)
    report = json.loads(result.stdout)
    ids = {(f["id"], f["subject"]) for f in report["findings"]}
    wanted = {("daemon.answers", ""), ("preload.reaches", ""), ("devices.usable", "rxe0"), ("devices.usable", "rxe1")}
    wanted |= {("mtu.fits", "veth0"), ("override.clear", "rxe0"), ("nic.no-order", "veth0")}
    wanted |= {("verbs.agrees", "rxe0"), ("verbs.moved", "rxe0 port 1"), ("verbs.moved", "rxe1 port 1")}
    assert wanted <= ids, f"not found: {wanted - ids}; found {sorted(ids)}"
    failed = [f for f in report["findings"] if f["severity"] == "fail"]
    assert not failed, failed
    dscp = next(f["reason"] for f in report["findings"] if f["id"].startswith("verbs.dscp"))
    return (
        f"{len(report['findings'])} findings, verdict {report['verdict']!r}; a message over each port, its DSCP: {dscp}"
    )


def pingpong(folder: Path) -> str:
    with Daemon(folder, rules("hold")) as daemon:
        pair = Pair(daemon, 18_515, "ibv_rc_pingpong", "-n", "200", "-s", "4096")
        permits, size = granted(daemon)
        attached = daemon.status().daemon.attached_total
    assert "200 iters" in pair.output
    assert attached == 2, f"{attached} programs attached, not 2"
    assert permits >= 400, f"{permits} permits for 200 messages each way"
    assert size == 2 * 200 * 4096, f"{size} bytes permitted"
    return f"200 messages each way, {permits} permits, {size} bytes permitted"


def lanes_on_the_wire(folder: Path) -> str:
    """Each program by itself, so that every packet seen is one of its two queue pairs'."""
    reported, permits, size = [], 0, 0
    with Daemon(folder, rules("hold")) as daemon:
        for i, (name, wire_class) in enumerate(LANES):
            file = folder / name
            with tcpdump("veth1", file):
                Pair(daemon, 18_520 + i, name, "-s", "16384", "-n", "200")
                until(functools.partial(both_ways, file), "packets both ways")
            packets = read_packets(file)
            (permits, size), earlier = granted(daemon), size
            seen = {dscp for dscp, _ in packets}
            assert seen == {DSCP[wire_class]}, f"{name}: DSCP {seen}, wanted {DSCP[wire_class]}"
            assert len(packets) > 200, f"{name}: {len(packets)} packets for 200 messages of four"
            assert size - earlier == 200 * 16_384, f"{name}: {size - earlier} bytes permitted"
            reported.append(f"{name} DSCP {DSCP[wire_class]} on all its {len(packets)} packets")
    reported.append(f"{permits} permits for {size} bytes")
    return "; ".join(reported)


def separation(folder: Path) -> str:
    """The cable's end is shaped from the policy file, as mfsctl does it; both programs send as fast as they can."""
    plan = make_plan("paper-k8", slow_profile("paper-k8", LINK_GBPS), {"testbed": ["veth0"]})
    minors = {c: 16 + plan.dscp_to_priority[DSCP[c]] for c in (UPPER, LOWER)}
    endless = ("-s", "16384", "-t", "64", "-n", "1000000", "-u", "20")
    linux.SYSTEM.apply_live(plan)
    started: list[Pair] = []
    try:
        with open_netlink() as netlink, Daemon(folder, rules("pass")) as daemon:
            index = interface_index(netlink, "veth0")

            def sent(wire_class: int) -> int:
                for c in netlink.get_classes(index=index):
                    if c["handle"] & 0xFFFF == minors[wire_class]:
                        return int(c.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")["bytes"])
                raise AssertionError(f"class 1:{minors[wire_class]:x} is gone")

            def more(wire_class: int, size: int) -> None:
                wanted = sent(wire_class) + size
                until(lambda: sent(wire_class) >= wanted, f"{size} bytes of class {wire_class}")

            started.append(Pair(daemon, 18_530, "ib_send_bw", *endless, wait=False))
            more(LOWER, 500_000)
            started.append(Pair(daemon, 18_531, "ib_write_bw", *endless, wait=False))
            more(UPPER, 500_000)
            before = sent(UPPER), sent(LOWER)
            more(UPPER, 4_000_000)
            moved = sent(UPPER) - before[0], sent(LOWER) - before[1]
            started.pop().stop()
            ended, low = time.monotonic(), sent(LOWER)
            more(LOWER, 500_000)
            back_ms = (time.monotonic() - ended) * 1e3
            assert low < sent(LOWER)
    finally:
        for pair in started:
            pair.stop()
        remove_queues(["veth0"])
    share = moved[0] / sum(moved)
    assert share >= SHARE_LEAST, f"class {UPPER} got {share:.1%} of what both sent"
    back = f"half a megabyte of the lower {back_ms / 1e3:.1f} s after its end (with its queue pair's timer of 4 s)"
    return f"DSCP {DSCP[UPPER]} got {share:.2%} beside DSCP {DSCP[LOWER]}; {back}"


def nccl(folder: Path, command: list[str]) -> str:
    held = '[[rule]]\nrole = "nccl-data"\naction = "hold"\nstage = "p2d"\n'
    environment = {"NCCL_IB_GID_INDEX": GID_INDEX, "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
    messages, size = 50, 65_536
    with Daemon(folder, held) as daemon:
        result = subprocess.run(
            under_mfs(daemon.socket, *command, str(messages), str(size), "1"),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env={**os.environ, **environment},
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        permits, granted_bytes = granted(daemon)
        eventually(lambda: daemon.status().daemon.attached_total == 2, "two NCCL processes")
    assert f"{messages} messages" in result.stdout
    assert granted_bytes >= messages * size, f"{granted_bytes} bytes permitted"
    version = re.findall(r"^NCCL (\d+)$", result.stdout, re.MULTILINE)[0]
    return f"NCCL {version}, two processes, {messages} messages of {size} bytes, {permits} permits, every byte checked"


def main(arguments: list[str]) -> int:
    checks: list[tuple[str, Callable[[Path], str]]] = [
        ("the doctor sees the kernel's devices", doctor),
        ("ibv_rc_pingpong is held and permitted", pingpong),
        ("each lane has its DSCP on every RoCE v2 packet", lanes_on_the_wire),
        ("the higher lane goes first on a shaped cable", separation),
    ]
    if arguments:
        checks.append(("two NCCL processes are held and permitted", lambda folder: nccl(folder, arguments)))
    print(f"kernel {os.uname().release}, {len(checks)} checks", flush=True)
    failed = 0
    for name, check in checks:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mfs-") as folder:
            try:
                reported = check(Path(folder))
            except Exception:
                failed += 1
                print(f"FAILED {name}", flush=True)
                traceback.print_exc()
                continue
        print(f"ok     {name}: {reported} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(checks) - failed} of {len(checks)} checks passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
