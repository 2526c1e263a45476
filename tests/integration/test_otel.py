"""Spans of requests, as a real OTLP receiver gets them over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from mfsd.client import Stage
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.waiting import eventually


class Receiver:
    """Takes OTLP/HTTP in protobuf, and answers with this status."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.asked = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                import gzip

                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.asked += 1
                assert self.path == "/v1/traces"
                request = ExportTraceServiceRequest.FromString(body)
                if status == 200:
                    for resource in request.resource_spans:
                        receiver.resources.append({a.key: a.value.string_value for a in resource.resource.attributes})
                        for scope in resource.scope_spans:
                            receiver.spans.extend(scope.spans)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def one_request(daemon: Daemon) -> None:
    with Engine(daemon.socket, "rdma0", "prefill") as engine:
        reported = [{"request_id": 2**63 + 1, "deadline_ns": time.monotonic_ns() + 3600 * 10**9}]
        engine("batch", batch_id=5, layers=2, requests=reported)
        for layer in range(2):
            engine(
                "submit", task="t", size_bytes=1000 + layer, stage=Stage.P2D, batch=5, layer=layer,
                request_id=2**63 + 1,
            )  # fmt: skip
            engine("wait", task="t")
            engine("complete", task="t")
        engine("end", batch_id=5)
        eventually(lambda: daemon.status().events["ended"].get("met"), "the end of the request")


def attributes(span: Span) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes}


@pytest.mark.parametrize("by", ["configuration", "variable"])
def test_one_span_for_a_request_and_one_for_each_layer(receiver: Receiver, folder: Path, by: str) -> None:
    config = f'[telemetry]\notlp = "{receiver.url}"\n' if by == "configuration" else ""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url} if by == "variable" else {}
    before_ns = time.time_ns()
    with Daemon(folder, config, environment=environment) as daemon:
        one_request(daemon)
        daemon.process.terminate()
        assert daemon.wait_end() == 0  # what waited was sent first
    (parent,) = [s for s in receiver.spans if s.name == "request"]
    children = sorted((s for s in receiver.spans if s is not parent), key=lambda s: s.name)
    assert [s.name for s in children] == ["p2d layer 0", "p2d layer 1"]
    facts = attributes(parent)
    assert (facts["mfs.request_id"], facts["mfs.bytes"], facts["mfs.outcome"], facts["mfs.batch_id"]) == (
        str(2**63 + 1),
        2001,
        "met",
        "5",
    )
    assert 3000 < float(str(facts["mfs.spare_seconds"])) < 3600
    for layer, child in enumerate(children):
        assert (child.parent_span_id, child.trace_id) == (parent.span_id, parent.trace_id)
        assert attributes(child)["mfs.bytes"] == 1000 + layer
        assert parent.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano
        assert child.end_time_unix_nano <= parent.end_time_unix_nano
    assert before_ns - 10**9 < parent.start_time_unix_nano < time.time_ns()
    assert receiver.resources[0]["service.name"] == "mfsd"


def test_a_receiver_that_refuses_costs_spans_only(folder: Path) -> None:
    receiver = Receiver(400)
    try:
        config = f'[telemetry]\notlp = "{receiver.url}"\n'
        with Daemon(folder, config, environment={"OTEL_BSP_SCHEDULE_DELAY": "50"}) as daemon:
            one_request(daemon)
            eventually(lambda: daemon.status().events["spans"]["failed"] == 3, "the failure being counted")
            daemon.wait_line("event=spans-failed")
            assert daemon.status().events["spans"] == {"exported": 0, "failed": 3, "dropped": 0}
    finally:
        receiver.close()


def without_the_extra(folder: Path, config: str, **environment: str) -> subprocess.Popen[str]:
    """mfsd on a host where the packages are not installed."""
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "opentelemetry.py").write_text("raise ImportError('not installed')\n")
    (folder / "mfsd.toml").write_text(config)
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mfsd.cli.daemon",
            "--config",
            str(folder / "mfsd.toml"),
            "--socket",
            str(folder / "run" / "s"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{hidden}:{Path(__file__).parents[2]}", **environment},
    )


def test_the_missing_extra_is_named(folder: Path) -> None:
    process = without_the_extra(folder, '[telemetry]\notlp = "http://127.0.0.1:4318"\n')
    _, output = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "pip install 'mfsd[otel]'" in output and "telemetry.otlp" in output


def test_a_variable_of_the_whole_host_stops_no_daemon(folder: Path) -> None:
    process = without_the_extra(folder, "", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318")
    try:
        assert process.stderr is not None
        lines: list[str] = []
        while "event=ready" not in (line := process.stderr.readline()):
            assert line, lines
            lines.append(line)
        assert any("event=no-spans" in line and "mfsd[otel]" in line for line in lines)
    finally:
        process.kill()
        process.communicate()
