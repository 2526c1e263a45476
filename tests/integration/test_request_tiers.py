"""What engines publish of their tiers, through the daemon of their node to the coordinator: its page, the command, the
metrics; until the engine, and until the node is gone. No vLLM: the files are written by what publishes there, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from mfsd.policy.serve import Policy, ServeConfig
from mfsd.serve.engine import Engine
from mfsd.serve.promise import Words
from mfsd.serve.publish import Publisher
from mfsd.serve.settings import Settings, Tier
from mfsd.serve.status_files import FOLDER_VARIABLE
from tests.integration.test_coordinator_page import FAST, fetch, page_of
from tests.integration.test_monitoring import read
from tests.integration.test_node_ctl import mfsctl
from tests.support.browser import Browser
from tests.support.cluster import Coordinator
from tests.support.daemon import Daemon
from tests.support.waiting import eventually

NODE = '[cluster]\nnode = "{name}"\nserve_status = [{folders}]\n'
TIERS = Settings(tiers={"chat": Tier(ttft_ms=3_600_000, importance=1), "batch": Tier(importance=-1)})


class PublishingEngine:
    """An engine's scheduler and what it publishes, with a clock that only this test moves."""

    def __init__(self, name: str, folder: Path, policy: Policy) -> None:
        self._now_s = 10.0
        self._engine = Engine(TIERS, ServeConfig(policy=policy), lambda kind, text: None, name, lambda: self._now_s)
        self.publisher = Publisher(self._engine, lambda kind, text: None, folder)
        self._number = 0

    def request(self, tier: str, takes_s: float | None = 0.1) -> None:
        """One that produces its first token and ends after so long; None: it goes on waiting."""
        name, self._number = f"r{self._number}", self._number + 1
        self._engine.arrived(name, Words(tier=tier), 0.0, 80, 64)
        if takes_s is not None:
            self._now_s += takes_s
            self._engine.produced(name, 1)
            self._engine.ended(name)
        self._now_s += 1.0
        self.publisher.tick()
        self.publisher.settled()


def by_tier(rows: list[dict[str, Any]], *fields: str) -> dict[str, tuple[Any, ...]]:
    return {row["tier"]: tuple(row[field] for field in fields) for row in rows}


def check_page(coordinator: Coordinator, tmp_path: Path) -> None:
    url = page_of(coordinator)
    seen = fetch(f"{url}view.json")
    assert by_tier(seen["tiers"], "met", "late", "waiting", "policies") == {
        "batch": (0, 0, 1, "fit"),
        "chat": (4, 1, 0, "edf 1, fit 1"),
    }
    assert [(row["node"], row["tier"], row["late"]) for row in seen["tiers_by_node"]] == [
        ("one", "chat", 1),
        ("one", "batch", 0),
        ("two", "chat", 0),
    ]
    assert any("two: 1 status file" in point["text"] for point in seen["verdict"]["points"])
    with Browser(tmp_path) as browser:
        browser.open(url, 1280, 900)
        browser.until("document.querySelector('#tiers tbody tr td')")
        assert "edf 1, fit 1" in browser.text("#tiers") and not browser.problems


def check_command(coordinator: Coordinator) -> None:
    shown = mfsctl(None, "cluster", "--address", coordinator.address, "--json")
    assert shown.returncode == 0, shown.stderr
    reply = json.loads(shown.stdout)
    assert by_tier(reply["tiers"], "in_time", "policies") == {
        "batch": (None, {"fit": 1}),
        "chat": (0.8, {"edf": 1, "fit": 1}),
    }
    assert {row["node"]: by_tier(row["tiers"], "met") for row in reply["nodes"]} == {
        "one": {"batch": (0,), "chat": (3,)},
        "two": {"chat": (1,)},
    }
    assert "RELEGATED" in mfsctl(None, "cluster", "--address", coordinator.address).stdout


def check_metrics(coordinator: Coordinator) -> None:
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(read(f"{page_of(coordinator)}metrics"))
        for sample in family.samples
    }
    assert samples["mfs_coordinator_tier_ended_requests", "chat", "late"] == 1
    assert samples["mfs_coordinator_tier_requests", "batch", "waiting"] == 1
    assert samples["mfs_coordinator_tier_engines", "chat", "edf"] == 1
    assert samples["mfs_coordinator_unreadable_status_files",] == 1


def test_tiers_of_two_nodes_are_on_the_page_in_the_command_and_in_the_metrics(tmp_path: Path, folder: Path) -> None:
    """One daemon finds its engines by the configuration, the other by the variable that engines have."""
    places = {name: folder / name for name in ("one", "two")}
    for place in places.values():
        place.mkdir()
    first = PublishingEngine("vllm-1-0", places["one"] / "engines", Policy.FIT)
    second = PublishingEngine("vllm-2-0", places["two"] / "engines", Policy.EDF)
    for takes_s in (0.1, 0.1, 0.1, 4_000.0):
        first.request("chat", takes_s)
    first.request("batch", None)
    second.request("chat")
    (places["two"] / "engines" / "broken.json").write_text("{")
    with Coordinator(tmp_path, config=FAST) as coordinator:
        url = page_of(coordinator)

        def node(name: str, named: str = "", **variables: str) -> Daemon:
            config = NODE.format(name=name, folders=named)
            return Daemon(places[name], config, "--coordinator-address", coordinator.address, environment=variables)

        def wait_tiers(expected: dict[str, tuple[Any, ...]], what: str, *fields: str) -> None:
            eventually(lambda: by_tier(fetch(f"{url}view.json")["tiers"], *fields) == expected, what, pause_s=0.1)

        with (
            node("one", f'"{places["one"]}/engines"') as one,
            node("two", **{FOLDER_VARIABLE: f"{places['two']}/engines"}) as two,
        ):
            wait_tiers({"chat": (2,), "batch": (1,)}, "both", "engines")
            assert "broken.json" in two.wait_line("event=serve-status-unreadable")
            check_page(coordinator, tmp_path)
            check_command(coordinator)
            check_metrics(coordinator)
            second.request("chat")
            wait_tiers({"chat": (5,), "batch": (0,)}, "what is new", "met")
            second.publisher.close()
            wait_tiers({"chat": (3,), "batch": (0,)}, "the engine's end", "met")
            one.process.kill()
            wait_tiers({}, "the node's end")
    first.publisher.close()
