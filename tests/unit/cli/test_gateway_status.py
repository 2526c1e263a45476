"""`mfsctl gateway status`: the table, --json, and no gateway there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest
from click.testing import CliRunner

from bench.ports import free_port
from mfsd.cli.commands.gateway import gateway
from mfsd.cli.daemon_call import EXIT_UNREACHABLE
from mfsd.policy.route import Role
from mfsd.serve.gateway.status import GatewayStatus, ReplicaStatus


def replica(name: str, problem: str = "") -> ReplicaStatus:
    return ReplicaStatus(
        name=name,
        url=f"http://{name}:8000",
        role=Role.BOTH,
        healthy=not problem,
        problem=problem,
        models=("tiny",),
        tiers=[],
        waiting=3,
        running=7,
        requests_max=256,
        waiting_tokens=90,
        kv_used_share=0.25,
        token_us=8.5,
        owed_bytes=None,
        sent=1200,
        failed=2,
    )


STATUS = GatewayStatus(
    router="locality",
    decode="owed",
    queue=4,
    queue_max=1024,
    programs=5,
    coordinator="",
    replicas=[replica("a"), replica("b", "refused")],
)


@pytest.fixture
def url() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/status.json" else 404)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(STATUS))

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", free_port()), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_table(url: str) -> None:
    done = CliRunner().invoke(gateway, ["status", "--url", url])
    assert done.exit_code == 0, done.output
    assert "REPLICA" in done.output and "down: refused" in done.output and "25" in done.output
    assert "router locality, queue 4 of 1024, 5 programs, ports unknown" in " ".join(done.output.split())


def test_json_is_the_gateways_own(url: str) -> None:
    done = CliRunner().invoke(gateway, ["status", "--url", url + "/", "--json"])
    assert done.exit_code == 0 and msgspec.convert(json.loads(done.output), GatewayStatus) == STATUS


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "gw-1:8081", "http://gw 1:8081", "http://gw:x", ""])
def test_no_gateway_there_names_the_option(url: str) -> None:
    done = CliRunner().invoke(gateway, ["status", "--url", url])
    assert done.exit_code == EXIT_UNREACHABLE and "--url" in done.output and len(done.output.splitlines()) == 1
    assert isinstance(done.exception, SystemExit)
