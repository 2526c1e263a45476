"""The daemon's metrics endpoint, read as Prometheus reads it."""

from __future__ import annotations

import socket
import subprocess
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from mfsd._native import Client, Stage
from tests.support.daemon import Daemon
from tests.support.debian import program
from tests.support.waiting import eventually

CONFIG = '[metrics]\nlisten = "127.0.0.1:0"\n'


def scrape(daemon: Daemon) -> str:
    port = daemon.wait_line("event=metrics").rpartition("port=")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=200) as answer:
        return answer.read().decode()


def value(text: str, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return 0.0


def test_what_a_program_did_is_there_after_it_has_ended(folder: Path) -> None:
    with Daemon(folder, CONFIG) as daemon:
        with Client.attach(str(daemon.socket), process="engine", timeout_ms=100_000) as client:
            nic = client.nic("rdma0", 0, 125_000_000)
            client.count_posted(nic, Stage.COLLECTIVE, 4096)
            task = client.submit(1000, stage=Stage.P2D, nic=nic)
            eventually(lambda: client.permits(), "a permit")
            client.complete(task)
            eventually(lambda: value(scrape(daemon), "mfs_tasks_completed_total", process="engine") == 1, "completion")
            assert value(scrape(daemon), "mfs_clients", state="active") == 1
        daemon.wait_clients(0)
        text = scrape(daemon)
        assert value(text, "mfs_tasks_completed_total", process="engine") == 1
        assert value(text, "mfs_posted_bytes_total", process="engine", stage="collective") == 4096
        checked = subprocess.run(
            [program("prometheus", "promtool"), "check", "metrics"], input=text, capture_output=True, text=True
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_an_address_in_use_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = Daemon(folder, f'[metrics]\nlisten = "{address}"\n')
        assert daemon.wait_end() == 1
        assert any(f"metrics.listen = {address}" in line for line in daemon.lines), daemon.lines
        daemon.__exit__(None, None, None)


def test_the_daemon_ends_in_order_with_a_reader_connected(folder: Path) -> None:
    with Daemon(folder, CONFIG) as daemon:
        port = int(daemon.wait_line("event=metrics").rpartition("port=")[2])
        with socket.create_connection(("127.0.0.1", port)):
            daemon.process.terminate()
            assert daemon.wait_end() == 0
