"""Alert rules and the dashboard: valid, and about metrics that exist."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from mfsd.serve.gateway.metrics import Metrics
from tests.support.debian import program
from tests.unit.deploy import runbook
from tests.unit.deploy.metric_table import (
    LEFT_OUT,
    exported,
    exported_by_coordinators,
    exported_by_gateways,
    metrics_of,
    panels,
    rows,
    shown,
    updated,
)

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "mfs.rules.yml"
Json = dict[str, Any]


def promtool(*arguments: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run([program("prometheus", "promtool"), *arguments], capture_output=True, text=True, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_rules_are_valid_and_fire_when_they_should() -> None:
    assert "rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", "mfs.rules.test.yml", cwd=RULES.parent)


def test_the_example_is_a_configuration_of_prometheus() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml", cwd=RULES.parent)
    example = yaml.safe_load((RULES.parent / "prometheus.yml").read_text())
    jobs = {job["job_name"] for job in example["scrape_configs"]}
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "operations.md").read_text(), re.DOTALL)
    assert yaml.safe_load(shown) == {name: example[name] for name in ("rule_files", "scrape_configs")}
    asked = RULES.read_text() + (DEPLOY / "grafana" / "mfs.json").read_text()
    assert jobs == set(re.findall(r'job=\\?"([\w-]+)', asked)), "rules and dashboard know jobs by these names"


def every_metric() -> set[str]:
    return {*exported(), *exported_by_coordinators(), *exported_by_gateways()}


def alerts() -> dict[str, Json]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_the_rules_use_metrics_that_exist() -> None:
    used = metrics_of("".join(rule["expr"] for rule in alerts().values()))
    assert used and used <= every_metric()


def test_every_alert_has_a_section_of_the_runbook_and_leads_there() -> None:
    assert alerts().keys() == runbook.sections().keys()
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{name.lower()}"


@pytest.mark.parametrize("name", runbook.sections())
def test_a_section_says_what_it_means_why_where_to_look_and_what_to_do(name: str) -> None:
    text = runbook.sections()[name]
    assert tuple(re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE)) == runbook.PARTS
    assert "```sh\n" in text, "a command to look with"


def test_the_dashboard_has_the_runbook() -> None:
    dashboard = json.loads(runbook.DASHBOARD.read_text())
    panel = runbook.panel(dashboard)
    assert panel["options"]["content"] == runbook.panel_text(), "run: python -m tests.unit.deploy.runbook"
    url = f"/d/{dashboard['uid']}?viewPanel={panel['id']}"
    links = [*dashboard["links"], *(link for panel in panels() for link in panel.get("links", []))]
    assert {link["url"] for link in links} == {url}
    named = {link["title"].removeprefix("Runbook: ") for link in links} - {"Runbook"}
    assert named == alerts().keys(), "every alert has a panel that leads to the runbook"


def test_deadlines_come_first() -> None:
    titles = [title for title, _ in rows()]
    assert titles[0] == "Deadlines" and len(titles) > 4
    first = {name for panel in rows()[0][1][:2] for target in panel["targets"] for name in metrics_of(target["expr"])}
    assert {"mfs_requests_in_time_ratio", "mfs_ended_requests_total"} <= first


def test_every_expression_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    expressions = [
        target["expr"].replace("$__rate_interval", "1m") for panel in panels() for target in panel["targets"]
    ]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions)]
    file = tmp_path / "panels.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(expressions)} rules found" in promtool("check", "rules", file)


def test_the_dashboard_uses_metrics_that_exist() -> None:
    assert shown().keys() <= every_metric()


def test_every_metric_is_on_a_panel_or_left_out_for_a_reason() -> None:
    assert every_metric() - shown().keys() == LEFT_OUT.keys()


def test_the_page_of_metrics_has_them_all() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == updated(page), "run: python -m tests.unit.deploy.metric_table docs/metrics.md"


def test_the_gateways_table_names_metrics_as_they_are_served() -> None:
    served = re.findall(r"^# TYPE (\w+) (\w+)$", Metrics().text().decode(), re.MULTILINE)
    listed = {(name, kind) for name, (kind, _, _) in exported_by_gateways().items()}
    assert {(name, kind) for name, kind in served if not name.endswith("_created")} == listed


def read_by_grafana(dashboard: Json) -> Json:
    """What Grafana's own models keep of it: what they do not know is lost."""
    plugins.register_default_plugins()
    kept: Json = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    return kept


def lost(given: object, kept: object, path: str = "") -> list[str]:
    """The places of `given` that `kept` has not, or has otherwise; what it has besides are defaults."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [place for key, value in given.items() for place in lost(value, kept.get(key), f"{path}/{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [place for n, (a, b) in enumerate(zip(given, kept, strict=True)) for place in lost(a, b, f"{path}/{n}")]
    return [] if given == kept else [path]


def test_grafana_understands_all_of_the_dashboard() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "mfs.json").read_text())
    assert lost(dashboard, read_by_grafana(dashboard)) == []
    for key in ("gridPos", "options", "fieldConfig"):  # and would notice a word that it does not know
        wrong = copy.deepcopy(dashboard)
        wrong["panels"][1][key]["colourMode"] = "value"
        assert lost(wrong, read_by_grafana(wrong)) == [f"/panels/1/{key}/colourMode"]


@pytest.mark.parametrize(("title", "inside"), rows(), ids=[title for title, _ in rows()])
def test_panels_fill_their_row_without_overlap(title: str, inside: list[Json]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in inside:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def test_every_panel_has_a_number_and_a_title_of_its_own() -> None:
    assert len({panel["id"] for panel in panels()}) == len({panel["title"] for panel in panels()}) == len(panels())
