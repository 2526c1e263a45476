"""mfsctl tells trouble with certificates from a coordinator that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from mfsd.proto.wire import TlsFiles
from tests.integration.test_node_ctl import mfsctl
from tests.support.cluster import Authority, Coordinator


def config(table: str, tls: TlsFiles) -> str:
    return f'[{table}]\nca = "{tls.ca}"\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n'


@pytest.mark.parametrize("client", ["none", "foreign", "plain server"])
def test_certificates_that_do_not_fit_are_named(tmp_path: Path, client: str) -> None:
    good, other = Authority(tmp_path, "good"), Authority(tmp_path, "other")
    server = "" if client == "plain server" else config("coordinator", good.issue("server", "127.0.0.1", "localhost"))
    file = tmp_path / "client.toml"
    file.write_text("" if client == "none" else config("cluster", other.issue("client")))
    with Coordinator(tmp_path, config=server) as coordinator:
        for command in (["coordinator", "status"], ["cluster"]):
            result = mfsctl(None, *command, "--address", coordinator.address, "--config", str(file))
            assert result.returncode == 3, result.stdout + result.stderr
            assert "certificates" in result.stdout + result.stderr, result.stderr
            assert "that one is running" not in result.stdout + result.stderr
            assert "ssl_transport_security" not in result.stderr, "gRPC's own lines are not for operators"


def test_a_missing_coordinator_is_reported_as_that(tmp_path: Path) -> None:
    for command in (["coordinator", "status"], ["cluster"]):
        result = mfsctl(None, *command, "--address", "127.0.0.1:1")
        assert result.returncode == 3
        assert "that one is running" in result.stdout + result.stderr
        assert "certificates" not in result.stdout + result.stderr
