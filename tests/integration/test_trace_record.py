"""mfsctl trace record against real daemons and real traffic: the file says what happened."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from mfsd.client import Session, Stage
from mfsd.node.control import RecordEvents, RecordRequest, RecordStarted
from mfsd.node.control_client import Conversation, Refused
from mfsd.node.events import LAYOUT, Kind, decode
from mfsd.node.recorder import RECORDINGS_MAX
from mfsd.observe import recording as recording_module
from mfsd.observe.recording import Recordings
from tests.conftest import SoftRoce
from tests.integration.test_node_ctl import mfsctl
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.perfetto import ask
from tests.support.tracefile import TraceFile
from tests.support.under_mfs import HOLD_EVERYTHING, under_mfs
from tests.support.waiting import eventually

LAYERS = 3
CONFIG = '[cluster]\nunit = "prefill-1"\n'


@contextmanager
def recording(output: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """mfsctl trace record, from when it records; interrupted at the end, and waited for."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mfsd.cli.ctl", "trace", "record", "-o", str(output), *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("recording")
        yield process
        until_now = process.poll() is None
        process.send_signal(signal.SIGINT)
        printed = process.stderr.read()
        assert process.wait(100) == 0, printed
        assert not until_now or "mfsctl: " not in printed, "nothing is missing"
    finally:
        process.kill()
        process.wait()


def traffic(engine: Engine, daemon: Daemon, batch: int, requests: tuple[int, ...]) -> None:
    """Each request moves a flow each way in a layer; the batch waits at each layer until the daemon has seen it."""
    deadline_ns = time.monotonic_ns() + 3600 * 10**9
    engine(
        "batch",
        batch_id=batch,
        layers=LAYERS,
        requests=[{"request_id": r, "deadline_ns": deadline_ns} for r in requests],
    )
    with Conversation(daemon.control, RecordRequest(LAYOUT)) as watch:
        watch.reply()  # it records from here on
        seen: set[int] = set()
        for layer in range(LAYERS):
            engine("layer", batch_id=batch, n=layer)
            while layer and layer not in seen:
                reply = watch.reply()
                if isinstance(reply, RecordEvents):
                    seen |= {
                        e.layer for e in decode(reply.events) if e.kind == Kind.BATCH_LAYER and e.batch_id == batch
                    }
            for request in requests:
                for part in range(2):
                    name = f"{request}-{layer}-{part}"
                    engine(
                        "submit", task=name, size_bytes=1000 + layer, stage=Stage.P2D, batch=batch, layer=layer,
                        request_id=request, incoming=bool(part),
                    )  # fmt: skip
                    engine("wait", task=name)
                    engine("complete", task=name)
    # Permits by credit need no daemon: its thread may read a submission when the batch has ended, and name none for it.
    moved = 2 * LAYERS * len(requests)
    eventually(lambda: sum(t.completes for t in daemon.status().totals) == moved, "that the daemon has read all flows")
    engine("end", batch_id=batch)
    eventually(lambda: daemon.status().events["ended"].get("met", 0) == len(requests), "the ends of the requests")


def test_the_file_says_what_happened(folder: Path) -> None:
    output = folder / "trace.json"
    with Daemon(folder, CONFIG) as daemon, Engine(daemon.socket, "rdma0") as engine:
        with recording(output, "--socket", daemon.socket):
            traffic(engine, daemon, 31, (7, 2**63 + 1))
        status = daemon.status()
    trace = TraceFile(output)
    flows = trace.flows()
    assert len(flows) == 2 * 2 * LAYERS
    for flow in flows:
        assert flow["submit"] <= flow["permit"] <= flow["over"]
        assert (flow["outcome"], flow["stage"], flow["nic"], flow["process"], flow["batch"], flow["whole"]) == (
            "complete",
            "p2d",
            "rdma0",
            "engine",
            "31",
            True,
        )
    assert {f["request"] for f in flows} == {"7", str(2**63 + 1)}
    by_layer = {layer: sum(f["bytes"] for f in flows if f["layer"] == layer) for layer in range(LAYERS)}
    assert by_layer == {layer: 4 * (1000 + layer) for layer in range(LAYERS)}
    assert sum(by_layer.values()) == sum(c.granted_bytes for c in status.nics[0].classes)
    assert sum(by_layer.values()) == status.totals[0].completed_bytes["p2d"]
    layers = trace.layers(31)
    assert [e["args"]["layer"] for e in layers] == list(range(LAYERS))
    for layer, after in itertools.pairwise(layers):
        assert layer["ts"] + layer["dur"] == pytest.approx(after["ts"], abs=0.01)
    for request in (7, 2**63 + 1):
        track = trace.request(request)
        deadline = track["n deadline"]
        begin, end = track[f"b request {request}"], track[f"e request {request}"]
        assert begin["ts"] <= end["ts"] < deadline["ts"]
        assert deadline["ts"] - begin["ts"] == pytest.approx(3600e6, rel=0.05)
        assert end["args"]["met"] is True
        assert end["args"]["bytes"] == 2 * sum(1000 + layer for layer in range(LAYERS))
    for direction in ("out", "in"):
        assert sum(f["bytes"] for f in flows if f["direction"] == direction) == sum(by_layer.values()) / 2
        for what in ("waiting", "permitted"):
            name = f"rdma0 {direction} {what}"
            counters = [sum(e["args"].values()) for e in trace.events if e["ph"] == "C" and e["name"] == name]
            assert max(counters) == 1000 + LAYERS - 1, "one flow of that direction at a time"
            assert counters[-1] == 0, "nothing is left"
    assert trace.about["nodes"][0]["lost_events"] == 0


def test_of_one_request_or_one_batch(folder: Path) -> None:
    for option, wanted in (("--request", {"7"}), ("--batch", {"7", "8"})):
        output = folder / f"{option}.json"
        with (
            Daemon(folder, CONFIG) as daemon,
            Engine(daemon.socket, "rdma0") as engine,
            recording(output, "--socket", daemon.socket, option, "7" if option == "--request" else "31"),
        ):
            engine("submit", task="other", size_bytes=5, stage=Stage.P2D, request_id=99)
            traffic(engine, daemon, 31, (7, 8))
        trace = TraceFile(output)
        assert {f["request"] for f in trace.flows()} == wanted
        assert len(trace.layers(31)) == LAYERS


def test_several_daemons_on_one_time_line(folder: Path) -> None:
    """Asked in one call, and merged from two files: the same flows in the same order."""
    a_folder, b_folder, both = folder / "a", folder / "b", folder / "both.json"
    a_folder.mkdir()
    b_folder.mkdir()
    with (
        Daemon(a_folder, '[cluster]\nnode = "a"\n') as a,
        Daemon(b_folder, '[cluster]\nnode = "b"\n') as b,
        Session.open(socket_path=str(a.socket), process="here") as here,
        Session.open(socket_path=str(b.socket), process="there") as there,
        recording(both, "--socket", a.socket, "--socket", b.socket),
        recording(a_folder / "a.json", "--socket", a.socket),
        recording(b_folder / "b.json", "--socket", b.socket),
    ):
        eventually(lambda: here.scheduled and there.scheduled, "both sessions")
        for number in range(20):  # one after the other, in turns
            session = here if number % 2 == 0 else there
            with session.submit(10, stage=Stage.P2D, nic=session.nic("rdma0"), request_id=number + 1):
                pass
        for daemon in (a, b):
            eventually(lambda: daemon.status().totals[0].completes == 10, "the flows")  # noqa: B023
    merged = folder / "merged.json"
    result = mfsctl(None, "trace", "merge", str(b_folder / "b.json"), str(a_folder / "a.json"), "-o", str(merged))
    assert result.returncode == 0, result.stderr
    assert "of a, b" in result.stderr
    for path in (both, merged):
        trace = TraceFile(path)
        nodes = {n["pid"]: n["node"] for n in trace.about["nodes"]}
        flows = sorted(trace.flows(), key=lambda f: f["submit"])
        assert [f["request"] for f in flows] == [str(n + 1) for n in range(20)], path
        assert [nodes[f["pid"]] for f in flows] == ["a", "b"] * 10
        assert all(0 <= n["uncertainty_ns"] < 10**8 for n in trace.about["nodes"])


def test_perfetto_shows_what_the_file_says(folder: Path) -> None:
    """In the viewer that people open it with: two nodes, every slice and counter with its time, name and arguments."""
    a_folder, b_folder, output = folder / "a", folder / "b", folder / "trace.json"
    a_folder.mkdir()
    b_folder.mkdir()
    with (
        Daemon(a_folder, '[cluster]\nnode = "a"\n') as a,
        Daemon(b_folder, '[cluster]\nnode = "b"\n') as b,
        Engine(a.socket, "rdma0") as sender,
        Engine(b.socket, "rdma0") as receiver,
        recording(output, "--socket", a.socket, "--socket", b.socket),
    ):
        traffic(sender, a, 31, (7, 2**63 + 1))
        traffic(receiver, b, 32, (7,))
    trace = TraceFile(output)
    complaints, processes, flows, layers, deadlines, counters = ask(
        output,
        [
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
            "select name from process where pid > 0 order by pid",
            "select s.ts, s.dur, extract_arg(s.arg_set_id, 'args.request'), extract_arg(s.arg_set_id, 'args.bytes'),"
            " p.pid from slice s join process_track t on s.track_id = t.id join process p using (upid)"
            " where s.category = 'flow' and s.depth = 0 order by s.ts",
            "select s.name, t.name, s.dur from slice s join thread_track k on s.track_id = k.id"
            " join thread t using (utid) where s.category = 'layer' order by s.ts",
            "select count(*) from slice where category = 'request' and name = 'deadline'",
            "select t.name, max(c.value) from counter c join counter_track t on c.track_id = t.id group by 1",
        ],
        folder / "browser",
    )
    assert complaints == []
    assert [name.split(" (mfsd")[0] for (name,) in processes] == ["a", "b"]
    reported = sorted(trace.flows(), key=lambda f: f["submit"])
    assert [(pid, request, size) for _, _, request, size, pid in flows] == [
        (f["pid"], f["request"], f["bytes"]) for f in reported
    ]
    for (_, dur_ns, *_), flow in zip(flows, reported, strict=True):
        assert dur_ns == pytest.approx(1e3 * (flow["over"] - flow["submit"]), abs=2)
    shown = [(batch.split()[:2], layer) for layer, batch, _ in layers]
    assert shown == [(["batch", str(n)], f"layer {layer}") for n in (31, 32) for layer in range(LAYERS)]
    assert deadlines == [[3]]
    assert {name for name, _ in counters} >= {f"rdma0 {d} waiting bytes" for d in ("in", "out")}
    assert all(most <= 1000 + LAYERS - 1 for _, most in counters)


def test_an_unmodified_program(soft_roce: SoftRoce, folder: Path) -> None:
    output = folder / "trace.json"
    with Daemon(folder, HOLD_EVERYTHING) as daemon:
        with recording(output, "--socket", daemon.socket):
            for text in soft_roce.pair(
                *under_mfs(daemon.socket, *["ib_write_bw", "-s", "65536", "-n", "500", "-F", "-d", "mfs0"])
            ):
                assert re.search(r"^ \d+ +\d+ ", text, re.MULTILINE), text
            daemon.wait_clients(0)
        status = daemon.status()
    flows = TraceFile(output).flows()
    assert all(f["submit"] <= f["permit"] <= f["over"] for f in flows)
    assert {f["process"] for f in flows} == {"ib_write_bw"}
    assert sum(f["bytes"] for f in flows) == sum(c.granted_bytes for n in status.nics for c in n.classes)
    assert sum(f["bytes"] for f in flows) >= 500 * 65536
    assert len(flows) == sum(t.permits for t in status.totals)


def test_what_was_recorded_survives_the_daemon(folder: Path) -> None:
    output = folder / "trace.json"
    with (
        Daemon(folder) as daemon,
        Engine(daemon.socket, "rdma0") as engine,
        recording(output, "--socket", daemon.socket) as process,
        Conversation(daemon.control, RecordRequest(LAYOUT)) as second,
    ):
        second.reply()
        engine("submit", task="a", size_bytes=5, stage=Stage.P2D)
        engine("wait", task="a")
        engine("complete", task="a")
        while Kind.COMPLETE not in _kinds(second.reply()):
            pass
        _kinds(second.reply())  # the other recording has been written, too: they take turns
        _kinds(second.reply())
        daemon.process.terminate()
        assert process.wait(100) == 0, "by itself, without a signal"
    assert [f["outcome"] for f in TraceFile(output).flows()] == ["complete"]


def _kinds(reply: object) -> set[int]:
    return {e.kind for e in decode(reply.events)} if isinstance(reply, RecordEvents) else set()


def test_it_ends_by_itself(folder: Path) -> None:
    with Daemon(folder) as daemon, Engine(daemon.socket, "rdma0") as engine:
        result = mfsctl(daemon.socket, "trace", "record", "--seconds", "0.1", "-o", str(folder / "none.json"))
        assert result.returncode == 0 and "no events" in result.stderr
        assert TraceFile(folder / "none.json").flows() == []
        with recording(folder / "few.json", "--socket", daemon.socket, "--max-events", "3") as process:
            engine("submit", task="a", size_bytes=5, stage=Stage.P2D)
            engine("wait", task="a")
            engine("complete", task="a")
            assert process.wait(100) == 0
            assert process.stderr is not None
            assert "see --max-events" in process.stderr.read()


def test_a_daemon_that_stands_still_meanwhile_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "Conversation", partial(Conversation, timeout_s=2.0))
    with Daemon(folder) as daemon, Engine(daemon.socket, "rdma0") as engine:
        recordings = Recordings([daemon.control])
        with stopped(daemon):
            recordings.wait(2.5)  # longer than any other question waits
        engine("submit", task="a", size_bytes=5, stage=Stage.P2D)
        engine("wait", task="a")
        engine("complete", task="a")
        eventually(lambda: daemon.status().totals[0].completes == 1, "the flow")
        (found,) = recordings.stop()
        assert not found.problem and Kind.COMPLETE in {e.kind for e in found.events}


def test_a_daemon_that_stays_still_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "END_S", 0.1)
    with Daemon(folder) as daemon:
        recordings = Recordings([daemon.control])
        with stopped(daemon):
            (found,) = recordings.stop()
        assert "does not answer within 0.1 s" in found.problem


@contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


def test_errors_name_what_to_do(folder: Path) -> None:
    missing = mfsctl(folder / "none.sock", "trace", "record", "--seconds", "1", "-o", str(folder / "x.json"))
    assert missing.returncode == 3 and "no mfsd at" in missing.stderr
    with Daemon(folder) as daemon:
        nowhere = mfsctl(daemon.socket, "trace", "record", "--seconds", "1", "-o", str(folder / "no/x.json"))
        assert nowhere.returncode == 1 and "name another file" in nowhere.stderr
        both = mfsctl(daemon.socket, "trace", "record", "--request", "1", "--batch", "1")
        assert both.returncode == 2
        kept = [Conversation(daemon.control, RecordRequest(LAYOUT)) for _ in range(RECORDINGS_MAX)]
        for conversation in kept:
            conversation.reply()
        full = mfsctl(daemon.socket, "trace", "record", "--seconds", "1", "-o", str(folder / "x.json"))
        assert full.returncode == 1 and "recordings are under way" in full.stderr
        for conversation in kept:
            conversation.__exit__()
        layout = json.dumps({"request": "record", "version": 1, "layout": 99})
        assert "layout" in _ask_line(daemon, layout)
    for text in (
        "",
        "[]",
        '{"traceEvents": []}',
        '{"traceEvents": [{"ts": "x"}], "mfs": {"base_realtime_ns": 0, "nodes": []}}',
    ):
        (folder / "bad.json").write_text(text)
        bad = mfsctl(None, "trace", "merge", str(folder / "bad.json"), "-o", str(folder / "x.json"))
        assert bad.returncode == 1 and "bad.json" in bad.stderr and "Traceback" not in bad.stderr, text


def _ask_line(daemon: Daemon, line: str) -> str:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(100)
        connection.connect(str(daemon.control))
        connection.sendall(line.encode() + b"\n")
        return connection.makefile().readline()


def test_the_ring_goes_with_its_last_reader(folder: Path) -> None:
    """Also with one that was killed: more of them than there may be at once."""
    with Daemon(folder) as daemon, Engine(daemon.socket, "rdma0") as engine:
        for _ in range(RECORDINGS_MAX + 1):
            eventually(lambda: _recorded_once(daemon), "a recording")
        engine("submit", task="a", size_bytes=5, stage=Stage.P2D)
        engine("wait", task="a")
        engine("complete", task="a")
        eventually(lambda: daemon.status().totals[0].completes == 1, "the completion")
        with recording(folder / "y.json", "--socket", daemon.socket):
            pass
        assert TraceFile(folder / "y.json").flows() == []


def _recorded_once(daemon: Daemon) -> bool:
    with Conversation(daemon.control, RecordRequest(LAYOUT)) as conversation:
        try:
            return isinstance(conversation.reply(), RecordStarted)
        except Refused:
            return False
