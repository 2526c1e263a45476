"""Prometheus itself beside a daemon, a coordinator and a gateway: the example's configuration, the rules, and every
query of the dashboard against what is really served."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mfsd.client import Request, Session, Stage
from tests.support.cluster import Coordinator, Process, free_port
from tests.support.daemon import Daemon
from tests.support.debian import program
from tests.support.gateway import gateway, replicas
from tests.support.openai_engine import MODEL, engines
from tests.support.waiting import TIMEOUT_S, eventually
from tests.unit.deploy.metric_table import DASHBOARD, metrics_of, panels

EXAMPLE = DASHBOARD.parents[1] / "prometheus" / "prometheus.yml"
ENDINGS = {"counter": "_total", "info": "_info"}
NEVER_HERE = {
    "mfs_refused_clients_total": "a program that is refused",
    "mfs_spans_total": "a receiver of spans",
    "mfs_coordinator_port_load_ratio": "variant paper, and a NIC",
    "mfs_coordinator_port_bypass_ratio": "a NIC with traffic past MFS",
    "mfs_coordinator_tier_ended_requests": "an engine that publishes",
    "mfs_coordinator_tier_requests": "an engine that publishes",
    "mfs_coordinator_tier_engines": "an engine that publishes",
    "mfs_nic_load_ratio": "variant paper",
    "mfs_nic_incoming_load_ratio": "variant paper",
    "mfs_nic_bypass_bytes_total": "a port with counters",
    "mfs_nic_pause_frames_total": "a port with counters by priority",
    "mfs_gateway_refused_total": "a request that no engine was given",
    "mfs_gateway_sent_elsewhere_total": "an engine that cannot be connected to",
    "mfs_gateway_picked_total": "a proxy that asks",
    "mfs_gateway_answers_total": "an engine that answers with an error",
}
"""Series that only come with these. They are exported all the same: a family without samples."""


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


@dataclass
class Watched:
    """A daemon with a program, its coordinator, a gateway with an engine, and where these serve metrics."""

    daemon: str
    coordinator: str
    gateway: str

    def families(self) -> set[str]:
        """Names of the samples that these may have."""
        return {
            family.name + ENDINGS.get(family.type, "")
            for place in (self.daemon, self.coordinator, self.gateway)
            for family in text_string_to_metric_families(read(f"http://{place}/metrics"))
        }


@pytest.fixture
def watched(folder: Path) -> Iterator[Watched]:
    page = f"127.0.0.1:{free_port()}"
    with Coordinator(folder, config=f'[coordinator]\nweb = "{page}"\n') as coordinator:
        coordinator.wait_lead()
        config = (
            f'[metrics]\nlisten = "127.0.0.1:0"\n[cluster]\nnode = "node-1"\ncoordinators = ["{coordinator.address}"]\n'
        )
        with (
            Daemon(folder, config) as daemon,
            Session.open(socket_path=str(daemon.socket), process="engine") as session,
            engines(1) as (engine,),
            gateway(folder, replicas(engine.url)) as front,
        ):
            eventually(lambda: session.scheduled, "the session")
            nic = session.nic("rdma0", rate_bytes_per_s=125_000_000)
            request = Request(7, time.monotonic_ns() + 3600 * 10**9)
            with (
                session.batch(11, layers=1, requests=[request]) as batch,
                session.submit(1000, stage=Stage.P2D, nic=nic, request_id=7, batch=batch),
            ):
                pass
            eventually(lambda: daemon.status().deadlines.met == 1, "a request in time")
            eventually(lambda: coordinator.status().nodes, "the daemon at the coordinator")
            eventually(lambda: front.status()["replicas"][0]["healthy"], "the engine at the gateway")
            assert front.post({"model": MODEL, "prompt": "a", "max_tokens": 2, "stream": True})[0] == 200
            here = f"127.0.0.1:{daemon.wait_line('event=metrics').rpartition('port=')[2]}"
            yield Watched(here, page, front.pages.removeprefix("http://"))


def test_every_query_of_the_dashboard_names_what_is_served(watched: Watched) -> None:
    served = watched.families()
    for panel in panels():
        for target in panel["targets"]:
            used = metrics_of(target["expr"])
            assert used <= served, f"{panel['title']}: {used - served} is not served"


class Prometheus:
    """One that runs with the example's configuration, and the addresses of this test in it."""

    def __init__(self, folder: Path, watched: Watched) -> None:
        config = yaml.safe_load(EXAMPLE.read_text())
        targets = {"mfsd": watched.daemon, "mfs-coordinator": watched.coordinator, "mfs-gateway": watched.gateway}
        config["global"] = dict.fromkeys(config["global"], "200ms")
        config["rule_files"] = [str(EXAMPLE.with_name(name)) for name in config["rule_files"]]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [targets.pop(job["job_name"])]}]
        assert not targets
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        self.address = f"127.0.0.1:{free_port()}"
        self.process = Process(
            program("prometheus", "prometheus"),
            *(f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={self.address}"),
        )

    def ask(self, path: str, **query: str) -> Any:
        answer = json.loads(read(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def up(self) -> bool:
        """Whether all have been scraped, twice, which a rate takes."""
        found = self.ask("query", query="sum_over_time(up[1m])")["result"]
        return len(found) == 3 and all(float(one["value"][1]) >= 2 for one in found)


@pytest.mark.slow
def test_prometheus_answers_every_query_of_the_dashboard(folder: Path, watched: Watched) -> None:
    prometheus = Prometheus(folder, watched)
    with prometheus.process as process:
        process.wait_line("Server is ready to receive web requests")
        eventually(prometheus.up, "two scrapes")
        empty = {}
        for panel in panels():
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
                if not prometheus.ask("query", query=query)["result"]:
                    empty[f"{panel['title']}: {query}"] = metrics_of(query)
        assert not {what: names for what, names in empty.items() if not names & NEVER_HERE.keys()}
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        assert rules and all(rule["health"] in ("ok", "unknown") for rule in rules), rules
        assert {rule["name"] for rule in rules if rule["state"] == "firing"} == set()
