"""Real programs that fill links: the shipped NCCL's transport, perftest, and the Mooncake wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.micro.daemon import BUILD, ROOT, compiler
from bench.micro.link import DEVICE, Leg
from bench.micro.nccl_wheel import nccl_net_arguments
from bench.ports import free_port
from mfsd.playground.program import Program

PROGRAMS = ROOT / "bench/programs"
RANKS = 2
FOREVER_S = 3600
POLITE = ("nice", "-n", "8")
"""Mooncake's workers poll without rest: they must not take two cores from the others."""
NCCL_ENVIRONMENT = {
    "NCCL_IB_GID_INDEX": "0",
    "NCCL_IB_HCA": DEVICE,
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_DEBUG": "WARN",
}


def build_pace() -> Path:
    """Compiles bench/programs/nccl_pace.c when a source is newer."""
    program = BUILD / "nccl_pace"
    sources = [PROGRAMS / "nccl_pace.c", PROGRAMS / "nccl_net.h"]
    if not program.exists() or program.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        BUILD.mkdir(parents=True, exist_ok=True)
        flags = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
        subprocess.run([compiler("cc", "gcc"), *flags, str(sources[0]), "-o", str(program), "-ldl"], check=True)
    return program


class Collectives:
    """Two ranks on the first two hosts that send each other messages at a pace."""

    def __init__(
        self, leg: Leg, version: str, message_bytes: int, pace_us: int, traffic_class: int | None = None
    ) -> None:
        command = [str(build_pace()), *nccl_net_arguments(version)]
        self.message_bytes = message_bytes
        self._folder = leg.folder
        self.ranks = [
            leg.start(
                host,
                f"NCCL {version}'s rank {rank}",
                [*command, str(rank), str(leg.folder), str(message_bytes), str(pace_us)],
                NCCL_ENVIRONMENT | ({} if traffic_class is None else {"NCCL_IB_TC": str(traffic_class)}),
            )
            for rank, host in enumerate(leg.rig.hosts.names[:RANKS])
        ]
        leg.wait(lambda: len(self.times()) >= WARM_MESSAGES, self.ranks[0], f"send {WARM_MESSAGES} messages")

    def times(self) -> list[tuple[int, int]]:
        """(asked to send, arrived) of each message of the first rank so far, ns of CLOCK_MONOTONIC."""
        try:
            text = (self._folder / "times.0").read_text()
        except FileNotFoundError:
            return []
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [(int(asked), int(arrived)) for asked, arrived in map(str.split, lines)]


WARM_MESSAGES = 5


class Perftest:
    """A pair of `ib_write_bw` or `ib_read_bw`: the server now, and the client when it is told to. Where several pairs
    run, all servers begin before the first client does: programs start slowly beside those that fill a link."""

    def __init__(
        self,
        leg: Leg,
        program: str,
        client_host: str,
        server_host: str,
        message_bytes: int,
        pairs: int,
        traffic_class: int | None = None,
    ) -> None:
        self._leg, self._client_host = leg, client_host
        self._port = free_port()
        self._address = leg.rig.hosts.address(server_host)
        self._name = f"{program} from {client_host} to {server_host}"
        self._command = [program, "-d", DEVICE, "-s", str(message_bytes), "-q", str(pairs), "-D", str(FOREVER_S)]
        self._command += ["-p", str(self._port), "-F", "-u", str(QP_TIMEOUT)]
        self._command += [] if traffic_class is None else ["--tclass", str(traffic_class)]
        name = f"{program}'s server on {server_host}"
        self._server = leg.start(server_host, name, self._command, shimmed=False)

    def start_client(self) -> Program:
        """It runs until the leg ends, once it has connected."""
        server = self._server
        self._leg.wait(lambda: listens(server.process.pid, self._port), server, "listen")
        return self._leg.start(self._client_host, self._name, [*self._command, self._address])


QP_TIMEOUT = 22
"""17 seconds a try: a path that is gone for a while is no failed queue pair."""


def listens(pid: int, port: int) -> bool:
    """Whether a process in the process's network listens on the port."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        if any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in lines):
            return True
    return False


def mooncake(
    leg: Leg, client_host: str, server_host: str, mib: int, threads: int = 3, traffic_class: int | None = None
) -> Program:
    """A Mooncake source that writes to a target on another host until the leg ends."""
    common = [*POLITE, sys.executable, str(PROGRAMS / "kv_write.py"), "--folder", str(leg.folder), "--mib", str(mib)]
    common += ["--threads", str(threads), "--device", DEVICE, "--address"]
    hosts = leg.rig.hosts
    environment = {} if traffic_class is None else {"MC_IB_TC": str(traffic_class)}
    target = [*common, hosts.address(server_host), "--target"]
    leg.start(server_host, "Mooncake's target", target, environment, shimmed=False)
    return leg.start(client_host, "Mooncake's source", [*common, hosts.address(client_host)], environment)
