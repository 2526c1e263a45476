"""`mfsctl playground` for real: nodes, daemons, coordinators; programs on nodes; what dies; what is left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mfsd.cli.playground_report import lately, seen
from mfsd.client import Request, Session, Stage
from mfsd.node.address import control_beside
from mfsd.node.control import (
    DeadlineStatus,
    RequestsReply,
    RequestsRequest,
    RequestStatus,
    StatusReply,
    StatusRequest,
    WhyReply,
    WhyRequest,
)
from mfsd.node.control_client import Unreachable, ask
from mfsd.playground.sandbox import SandboxError, run_sandboxed
from tests.support.daemon import Daemon
from tests.support.waiting import TIMEOUT_S, eventually

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
GUIDE = [
    shlex.split(line)[1:]
    for line in (ROOT / "docs" / "guide.md").read_text().splitlines()
    if re.match("mfsctl playground (exec|shell)", line)
]
"""What the guide says to try, in its order."""
RATE = "500mbit"
"""Of a link that programs fill: at the rate of a playground without the option they take a quarter of a minute."""


def missing() -> str:
    try:
        return "" if run_sandboxed(lambda: 0) == 0 else "the sandbox is broken"
    except SandboxError as error:
        return str(error)


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class Playground:
    """One that runs, with a folder of this test's own."""

    def __init__(self, place: Path, *options: str, before: tuple[str, ...] = ()) -> None:
        self.place = place
        self.environment = {**os.environ, "TMPDIR": str(place), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        self.process = subprocess.Popen(
            [*before, *self.mfsctl("playground", "--json", *options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self.output: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(TIMEOUT_S)}: {self.output}"
        self.state: dict[str, Any] = json.loads(line)
        self.coordinators = ",".join(c["outside"] for c in self.state["coordinators"])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.output.append(line)

    @staticmethod
    def mfsctl(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "mfsd.cli.ctl", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.mfsctl(*arguments), capture_output=True, text=True, env=self.environment, timeout=120
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.mfsctl(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )

    def socket(self, node: str) -> Path:
        return next(Path(n["socket"]) for n in self.state["nodes"] if n["name"] == node)

    def status(self, node: str) -> StatusReply:
        reply = ask(control_beside(self.socket(node)), StatusRequest(), TIMEOUT_S)
        assert isinstance(reply, StatusReply)
        return reply

    def switch(self, node: str, mode: str) -> str:
        return self.run("--socket", str(self.socket(node)), "mode", mode).stdout

    def connected(self) -> set[str]:
        """Nodes that the leading coordinator has a connection with."""
        result = self.run("coordinator", "status", "--address", self.coordinators, "--json")
        if result.returncode != 0:
            return set()
        return {n["node"] for n in json.loads(result.stdout)["nodes"] if n["connected"]}

    def modes(self) -> dict[str, str | None]:
        """Of the nodes that the coordinator asks; None, or nothing at all, where the answer does not come in time."""
        result = self.run("cluster", "--address", self.coordinators, "--json")
        return {n["node"]: n["mode"] for n in json.loads(result.stdout)["nodes"]} if result.stdout else {}

    def wait_connected(self) -> None:
        expected = {n["name"] for n in self.state["nodes"]}
        eventually(lambda: self.connected() == expected, "daemons connected to the leader")

    def pid_of(self, node: str) -> int:
        """The daemon's number out here."""
        socket = str(self.socket(node))
        (pid,) = [pid for pid, words in processes() if "mfsd.cli.daemon" in words and socket in words]
        return pid

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def left_behind(self) -> list[str]:
        """Processes and files that name its folder, and interfaces and namespaces that show outside."""
        found = [" ".join(words) for _, words in processes() if any(str(self.place) in word for word in words)]
        found += [str(path) for path in self.place.rglob("*")]
        if Path("/run/netns").is_dir():
            found += [str(p) for p in Path("/run/netns").iterdir() if p.name in ("node1", "node2")]
        return found + [d for d in ("br0", "port1") if Path(f"/sys/class/net/{d}/master").exists()]


def processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="mfs-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def playground(place: Path) -> Iterator[Playground]:
    found = Playground(place, "--nodes", "2", "--rate", RATE)
    yield found
    if found.process.poll() is None:
        assert found.end() == 130
    assert not found.left_behind()


@pytest.fixture(scope="module")
def loaded() -> Iterator[Playground]:
    """Three kinds of nodes under a load, which goes on: for the last tests of this file."""
    with tempfile.TemporaryDirectory(prefix="mfs-", dir="/tmp") as folder:
        found = Playground(Path(folder), "--nodes", "3", "--load")
        try:
            yield found
            assert found.end() == 130 and not found.left_behind()
        finally:
            found.process.kill()


@pytest.mark.slow
def test_an_unmodified_program_across_two_nodes_is_scheduled(playground: Playground) -> None:
    assert playground.state["etcd"] is True and len(playground.state["coordinators"]) == 2
    status, receive, send, shell = GUIDE
    assert playground.run(*status).returncode == 0 and shell == ["playground", "shell", "node1"]

    def granted() -> int:
        return sum(c.granted_bytes for nic in playground.status("node2").nics for c in nic.classes)

    def transfer() -> int:
        """Bytes of it that had a permit."""
        before = granted()
        server = playground.start(*receive)

        def client() -> subprocess.CompletedProcess[str] | None:
            assert server.poll() is None, server.communicate()[0]
            result = playground.run(*send)
            return None if "Couldn't connect" in result.stdout + result.stderr else result

        result = eventually(client, "the server")
        output, _ = server.communicate(timeout=TIMEOUT_S)
        assert result.returncode == 0 and server.returncode == 0, result.stdout + result.stderr + output
        assert "65536      5000" in result.stdout, "perftest's table"
        return granted() - before

    # a machine that stands still for 50 ms lets messages pass: then once more
    assert any(transfer() >= 5000 * 65536 for _ in range(4)), "each of its bytes had a permit"
    assert [nic.name for nic in playground.status("node2").nics] == ["mfs0"]
    assert not [n for n in playground.status("node1").nics if sum(c.granted_bytes for c in n.classes)], (
        "it only received"
    )
    playground.wait_connected()


@pytest.mark.slow
def test_a_killed_daemon_is_back_and_ctrl_c_leaves_nothing(playground: Playground) -> None:
    playground.wait_connected()
    before = playground.status("node2").daemon.epoch
    shown = playground.run("--socket", str(playground.socket("node2")), "status", "--json")
    pid = json.loads(shown.stdout)["daemon"]["pid"]
    assert pid == playground.pid_of("node2") != playground.status("node2").daemon.pid, "as it is here, not in there"
    os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        try:
            return playground.status("node2").daemon.epoch != before
        except (Unreachable, OSError):
            return False

    eventually(back, "another daemon of node2")
    assert any("mfsd of node2 ended (killed by signal 9)" in line for line in playground.output)
    playground.wait_connected()
    for coordinator in playground.state["coordinators"]:
        with urllib.request.urlopen(coordinator["page"], timeout=TIMEOUT_S) as page:
            assert page.status == 200 and b"<html" in page.read().lower()
    visitor = playground.start("playground", "exec", "node1", "--", "sleep", "1000")
    eventually(lambda: any("1000" in words and words[0] == "sleep" for _, words in processes()), "the program")
    assert playground.end(signal.SIGINT) == 130
    assert visitor.wait(TIMEOUT_S) != 0, "a visitor leaves with it"
    assert not playground.left_behind()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_leaves_nothing_however_it_ends(place: Path, number: int) -> None:
    playground = Playground(place, "--nodes", "1", "--load")
    eventually(lambda: any(c.permits for c in playground.status("node1").clients), "the load")
    assert playground.end(number) == (130 if number == signal.SIGTERM else -9)
    eventually(lambda: not [w for _, w in processes() if any(str(place) in word for word in w)], "the last process")
    if number == signal.SIGTERM:
        assert not playground.left_behind()
    else:  # no process was left to remove files; the next one takes the folder over
        again = Playground(place, "--nodes", "1")
        assert again.end() == 130 and not again.left_behind()


@pytest.mark.slow
def test_an_ordinary_user_without_etcd_has_one_coordinator(place: Path, tmp_path: Path) -> None:
    """Number 1000 of a user namespace has no rights, whichever user runs the tests."""
    hide = "from mfsd.playground import cluster; cluster.find_etcd = lambda: None"
    script = tmp_path / "mfsctl.py"
    script.write_text(f"{hide}\nfrom mfsd.cli.ctl import main\nmain()\n")
    program = subprocess.Popen(
        [
            "unshare",
            "--user",
            "--map-user=1000",
            "--map-group=1000",
            *(sys.executable, script),
            "playground",
            "--nodes=1",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(ROOT)},
    )
    assert program.stdout is not None
    first = program.stdout.readline()
    assert "one coordinator (no etcd found: install etcd-server for two)" in first
    for line in program.stdout:
        if "Ctrl-C ends everything" in line:
            break
    program.send_signal(signal.SIGINT)
    assert program.wait(TIMEOUT_S) == 130
    assert not list(place.rglob("*"))


def test_the_line_of_a_load_counts_what_a_daemon_says(folder: Path) -> None:
    with Daemon(folder) as daemon, Session.open(socket_path=str(daemon.socket)) as session:
        eventually(lambda: session.scheduled, "the session")
        before = seen([daemon.socket, folder / "killed.sock"])
        nic = session.nic("rdma0")
        for number, deadline_ns in ((1, time.monotonic_ns() + 3600 * 10**9), (2, 1)):
            batch = session.batch(number, layers=1, requests=[Request(number, deadline_ns)])
            with session.submit(100, stage=Stage.P2D, nic=nic, request_id=number, batch=batch):
                pass
            eventually(lambda: daemon.status().totals[0].completes == number, "what it moves")  # noqa: B023
            batch.end()
        eventually(lambda: daemon.status().deadlines.missed == 1, "the ends")
        assert lately(before, seen([daemon.socket]), 10) == "enforce: 50% of 2 requests in time in the last 10 s"


@pytest.mark.slow
def test_a_shell_and_a_status_come_from_the_node(playground: Playground) -> None:
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        playground.mfsctl("playground", "shell", "node2"),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**playground.environment, "SHELL": "/bin/sh"},
    )
    os.close(theirs)
    os.write(ours, b"ip -br address show eth0; ibv_devices; echo socket $MFS_SOCKET; exit 7\n")
    output, _ = shell.communicate(timeout=TIMEOUT_S)
    os.close(ours)
    assert shell.returncode == 7, output
    assert playground.state["nodes"][1]["address"] in output and "mfs0" in output
    assert f"socket {playground.socket('node2')}" in output
    status = playground.run("playground", "exec", "node1", "--", "mfsctl", "status", "--json")
    assert json.loads(status.stdout)["daemon"]["socket"] == str(playground.socket("node1"))
    assert playground.run("playground", "exec", "node1", "--", "sh", "-c", "kill -9 $$").returncode == 137
    wrong = playground.run("playground", "exec", "node9", "--", "true")
    assert (wrong.returncode, wrong.stderr) == (1, "mfsctl playground: no node 'node9'; there are: node1, node2\n")
    second = playground.run("playground")
    assert second.returncode == 1 and "a playground of yours already runs" in second.stderr
    not_there = playground.run("playground", "exec", "node1", "--", "no-such-program")
    assert not_there.returncode == 127


def test_without_one_the_remedy_is_reported(place: Path) -> None:
    result = subprocess.run(
        Playground.mfsctl("playground", "exec", "node1", "--", "true"),
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert result.returncode == 1
    assert result.stderr == (
        "mfsctl playground: no playground of yours runs; start one in another terminal: mfsctl playground\n"
    )


@pytest.mark.parametrize("rate", ["fast", "none", "100kbit", "11tbit"])
def test_a_bad_rate_is_refused(place: Path, rate: str) -> None:
    result = subprocess.run(
        Playground.mfsctl("playground", "--rate", rate),
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert result.returncode == 2 and "--rate" in result.stderr and "for example 1" in result.stderr


@pytest.mark.slow
def test_the_load_tells_the_story(loaded: Playground) -> None:
    """Three kinds of nodes, all stages, some late, some pruned."""

    def classes(node: str) -> int:
        return sum(1 for nic in loaded.status(node).nics for c in nic.classes if c.grants)

    def requests() -> list[RequestStatus]:
        reply = ask(control_beside(loaded.socket("node1")), RequestsRequest(layers=False, limit=4096), TIMEOUT_S)
        assert isinstance(reply, RequestsReply)
        return reply.requests

    eventually(lambda: len(loaded.status("node3").totals) == 1, "the decode node")
    eventually(lambda: all(loaded.status(n).clients for n in ("node1", "node2", "node3")), "that all have attached")
    assert [loaded.status(n).clients[0].process for n in ("node1", "node2", "node3")] == ["prefill", "store", "decode"]
    eventually(lambda: classes("node1") >= 3, "several classes")
    stages = {"reuse", "collective", "p2d"}
    eventually(lambda: stages <= loaded.status("node1").totals[0].completed_bytes.keys(), "all stages")
    eventually(lambda: any(w.ahead_tasks for w in slowest(loaded).seen), "one that waits behind others")
    eventually(lambda: {"met", "missed"} <= {r.outcome for r in requests()}, "requests in time and late")
    eventually(lambda: any(r.pruned for r in requests()), "a pruned request")
    nic = loaded.status("node1").nics[0]
    assert nic.classes[-2].sent_bytes and nic.unscheduled_bytes and any(c.received_bytes for c in nic.classes)


def slowest(playground: Playground) -> WhyReply:
    reply = ask(control_beside(playground.socket("node1")), WhyRequest(slowest=True), TIMEOUT_S)
    assert isinstance(reply, WhyReply)
    return reply


@pytest.mark.slow
def test_a_switch_of_the_mode_shows(loaded: Playground) -> None:
    """What an operator sees who follows what the playground prints, in requests: a slow machine takes longer for them.
    On two busy cores it was 94 and 95 % with enforce, 23 and 30 % with observe."""
    enforced = share_in_time(loaded, DeadlineStatus())
    switched = loaded.status("node1").deadlines
    assert loaded.switch("node1", "observe") == "mode: enforce -> observe\n"
    observe_is_seen(loaded)
    observed = share_in_time(loaded, ended(loaded, BACKLOG, switched))
    switched = loaded.status("node1").deadlines
    assert loaded.switch("node1", "enforce") == "mode: observe -> enforce\n"
    again = share_in_time(loaded, ended(loaded, BACKLOG, switched))
    assert enforced - observed > SWITCH_SHOWS and again - observed > SWITCH_SHOWS, (enforced, observed, again)
    shown = loaded.run("--socket", str(loaded.socket("node1")), "status").stdout
    assert re.search(r"^in time: \d+% of \d+ \(20 s\), \d+% of \d+ \(5m 0s\)$", shown, re.MULTILINE), shown


COUNTED, BACKLOG = 18, 12
"""Requests, those of what was before a switch apart: six in two seconds end on a node that prefills."""
SWITCH_SHOWS = 0.2


def share_in_time(playground: Playground, since: DeadlineStatus) -> float:
    """Of the requests on node1 since then, COUNTED or more."""
    last = ended(playground, COUNTED, since)
    return (last.met - since.met) / (last.met + last.missed - since.met - since.missed)


def ended(playground: Playground, count: int, since: DeadlineStatus) -> DeadlineStatus:
    """How node1 stands once so many more requests have ended there."""

    def so_many() -> DeadlineStatus | None:
        now = playground.status("node1").deadlines
        return now if now.met + now.missed >= since.met + since.missed + count else None

    return eventually(so_many, f"{count} requests that end", pause_s=0.2)


def observe_is_seen(playground: Playground) -> None:
    """Of node1, from out here."""
    before = playground.status("node1").nics[0].passed_bytes
    eventually(lambda: playground.status("node1").nics[0].passed_bytes > before, "bytes without a permit")
    modes = {"node1": "observe", "node2": "enforce", "node3": "enforce"}
    eventually(lambda: playground.modes() == modes, "what they say when asked from out here")
    shown = playground.run("--socket", str(playground.socket("node1")), "status", "--json")
    pid = str(json.loads(shown.stdout)["clients"][0]["pid"])
    why = playground.run("--socket", str(playground.socket("node1")), "explain", pid)
    assert why.returncode == 0 and f"prefill, process {pid}: " in why.stdout, "a process id as status shows it out here"
    there = playground.run("flows", "--cluster", "--address", playground.coordinators, "--seconds", "3", "--json")
    assert there.returncode == 0 and '"node":"node3"' in there.stdout, (there.stdout, there.stderr)


def test_a_reader_that_has_gone_ends_it_without_a_word(place: Path) -> None:
    """As `| head` has."""
    reads, writes = os.pipe()
    os.close(reads)
    result = subprocess.run(
        Playground.mfsctl("playground", "--nodes", "1", "--json"),
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    os.close(writes)
    assert (result.returncode, result.stderr) == (141, "")
    assert not list(place.iterdir())
