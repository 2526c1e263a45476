"""What moves bytes in a soak: programs that check what they moved, one run after the other."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.ports import free_port
from mfsd._native import peer_hash
from tests.soak.nodes import Node
from tests.soak.tally import Tally
from tests.support.under_mfs import ROOT, under_mfs
from tests.support.wheels import NCCL_ENVIRONMENT, NCCL_VERSIONS, nccl_net_arguments

RUN_S_MAX = 180.0
"""A run that was not touched and that takes longer has lost its transfers."""
WRONG_DATA = re.compile(
    r"invalid data in page|wrong data|wrong at byte|part \d+ has \d+ bytes"
    r"|stress: (completion \d+ where|a completion (that was not|for an unknown)|an arrival |arrival out of order|cell )"
)
"""What the programs say when bytes or completions are not what they should be."""
PINGPONG = ("ibv_rc_pingpong", "-d", "mfs0", "-g", "0", "-c", "-s", "65536", "-n", "400")
BANDWIDTH = ("ib_write_bw", "-F", "-d", "mfs0", "-s", "65536", "-n", "3000")


class Run:
    """The processes of one run. The one that kills it says so first: what they lose then is not lost by MFS."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.excused = False

    def start(self, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def kill(self) -> None:
        """All of them, with their children."""
        self.excused = True
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _listener(port: int, server: subprocess.Popen[str], until_s: float) -> bool:
    """Waits until the server listens, without connecting to it. False when it has ended instead."""
    wanted = f":{port:04X}"
    while time.monotonic() < until_s and server.poll() is None:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[1].endswith(wanted) and columns[3] == "0A":
                    return True
        time.sleep(0.05)
    return False


class Slot:
    """One place in which runs of one kind follow each other until it is stopped."""

    def __init__(
        self, name: str, tally: Tally, begin: Callable[[Run], None], moved: Callable[[list[str]], tuple[int, int]]
    ):
        """`begin` starts the run's processes; `moved` reads transfers and bytes from what they wrote."""
        self.name = name
        self.run = Run()
        self._tally, self._begin, self._moved = tally, begin, moved
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No further run; the present one goes on."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def kill(self) -> set[int]:
        """Kills the present run; the processes that were alive."""
        with self._lock:
            alive = {process.pid for process in self.run.processes if process.poll() is None}
            self.run.kill()
        return alive

    def kill_one(self, chance: random.Random) -> set[int]:
        """Kills one of the present run's processes, if there are several: its peer is left alone. It, if there were."""
        with self._lock:
            alive = [process for process in self.run.processes if process.poll() is None]
            if len(alive) < 2:
                return set()
            self.run.excused = True
            process = chance.choice(alive)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return {process.pid}

    def pids(self) -> list[int]:
        """Of living processes of the present run."""
        with self._lock:
            return [process.pid for process in self.run.processes if process.poll() is None]

    def pid(self) -> int | None:
        return next(iter(self.pids()), None)

    def _repeat(self) -> None:
        while not self._stop.is_set():
            run = Run()
            with self._lock:
                self.run = run
            try:
                self._begin(run)
                output = self._finish(run)
            finally:
                with self._lock:
                    for process in run.processes:
                        if process.poll() is None:
                            with contextlib.suppress(ProcessLookupError):
                                os.killpg(process.pid, signal.SIGKILL)
            self._judge(run, output)

    def _finish(self, run: Run) -> list[str]:
        until_s = time.monotonic() + RUN_S_MAX
        output = []
        for process in run.processes:
            try:
                output.append(process.communicate(timeout=max(0.1, until_s - time.monotonic()))[0])
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                output.append(process.communicate()[0] + f"\n[did not end within {RUN_S_MAX:g} s]")
        return output

    def _judge(self, run: Run, output: list[str]) -> None:
        codes = [process.returncode for process in run.processes]
        if any(map(WRONG_DATA.search, output)):
            self._tally.corrupted(self.name, "\n".join(output))
        elif run.processes and not any(codes):
            self._tally.moved(self.name, *self._moved(output))
        elif run.excused:
            self._tally.excused(self.name)
        else:
            self._tally.lost(self.name, f"exit codes {codes}\n" + "\n".join(output))


# ---- kinds of programs -----------------------------------------------------------------------------


def stress(tally: Tally, node: Node, program: Path) -> Slot:
    """Mixed work requests within one process, each byte and completion checked."""

    def begin(run: Run) -> None:
        seed = str(time.monotonic_ns() % 1_000_000 + 1)
        options = ("--work-requests", "60000", "--queue-pairs", "2", "--threads", "1", "--seed", seed)
        run.start(node.soft_roce(*under_mfs(node.socket, program, *options)), node.environment)

    def moved(output: list[str]) -> tuple[int, int]:
        last = json.loads([line for line in output[0].splitlines() if line.startswith("{")][-1])
        return int(last["work_requests"]), int(last["work_requests"]) * 64

    return Slot(f"stress on {node.name}", tally, begin, moved)


def pair(name: str, tally: Tally, server: Node, client: Node, command: tuple[str, ...], each: tuple[int, int]) -> Slot:
    """A server on one node and a client on another, in the manner of perftest."""

    def begin(run: Run) -> None:
        port = str(free_port())
        listening = run.start(server.soft_roce(*under_mfs(server.socket, *command, "-p", port)), server.environment)
        if not _listener(int(port), listening, time.monotonic() + RUN_S_MAX):
            return
        run.start(client.soft_roce(*under_mfs(client.socket, *command, "-p", port, server.address)), client.environment)

    def moved(output: list[str]) -> tuple[int, int]:
        whole = len(output) == 2 and all(re.search(r"iters in|^ \d+ +\d+ ", text, re.MULTILINE) for text in output)
        return each if whole else (0, 0)

    return Slot(f"{name} {client.name} to {server.name}", tally, begin, moved)


def sessions(tally: Tally, node: Node) -> Slot:
    """An engine that asks for leave through `mfsd.client`, and compares what arrived with what it sent."""

    def begin(run: Run) -> None:
        program = (sys.executable, "-m", "tests.soak.session_writes", "--transfers", "60")
        run.start(node.soft_roce(*under_mfs(node.socket, *program)), node.environment)

    def moved(output: list[str]) -> tuple[int, int]:
        last = json.loads([line for line in output[0].splitlines() if line.startswith("{")][-1])
        return int(last["transfers"]), int(last["bytes"])

    return Slot(f"session on {node.name}", tally, begin, moved)


def nccl(tally: Tally, node: Node, program: Path) -> Slot:
    """Messages through a shipped NCCL's IB transport, which signals one clear-to-send in many; each byte checked."""
    messages, size_bytes = 2000, 65536

    def begin(run: Run) -> None:
        shape = (str(messages), str(size_bytes), "1")
        command: list[str | Path] = [program, *nccl_net_arguments(NCCL_VERSIONS[0]), *shape]
        run.start(node.soft_roce(*under_mfs(node.socket, *command)), {**node.environment, **NCCL_ENVIRONMENT})

    def moved(output: list[str]) -> tuple[int, int]:
        whole = re.search(r"^(\d+) messages$", output[0], re.MULTILINE)
        return (int(whole[1]), int(whole[1]) * size_bytes) if whole else (0, 0)

    return Slot(f"nccl on {node.name}", tally, begin, moved)


def hostile(tally: Tally, node: Node, peer: Node) -> Slot:
    """One that attacks its daemon, the NIC of the others and what they send to the peer."""
    gid = bytes(10) + b"\xff\xff" + bytes(map(int, peer.address.split(".")))

    def begin(run: Run) -> None:
        status = node.status()
        guid = next((nic.guid for nic in status.nics if nic.name == "mfs0"), "0") if status else "0"
        options = ("--socket", str(node.socket), "--guid", f"0x{guid.replace(':', '')}", "--peer", str(peer_hash(gid)))
        run.start([sys.executable, "-m", "tests.soak.hostile", *options], node.environment)

    def moved(output: list[str]) -> tuple[int, int]:
        last = json.loads([line for line in output[0].splitlines() if line.startswith("{")][-1])
        return int(last["attacks"]) or bool(last["last_refused"]), 0

    return Slot(f"hostile on {node.name}", tally, begin, moved)
