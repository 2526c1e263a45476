"""Alert rules and the dashboard: valid, and about metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mfsd.node.totals import Totals
from mfsd.observe.metrics import families
from tests.support.debian import program
from tests.unit.observe.test_metrics import CLIENT, status

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "mfs.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "mfs.json"


def promtool(*arguments: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run([program("prometheus", "promtool"), *arguments], capture_output=True, text=True, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def exported() -> set[str]:
    return {sample.name for family in families(status([CLIENT], Totals())) for sample in family.samples}


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\bmfs_\w+", expression))


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text())["panels"]  # type: ignore[no-any-return]


def test_the_rules_are_valid_and_fire_when_they_should() -> None:
    assert "rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", "mfs.rules.test.yml", cwd=RULES.parent)


def test_the_rules_use_metrics_that_exist() -> None:
    used = metrics_of(RULES.read_text())
    assert used and used <= exported()


def test_every_expression_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    expressions = [
        target["expr"].replace("$__rate_interval", "1m") for panel in panels() for target in panel["targets"]
    ]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions)]
    file = tmp_path / "panels.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(expressions)} rules found" in promtool("check", "rules", file)


def test_the_dashboard_uses_metrics_that_exist() -> None:
    for panel in panels():
        for target in panel["targets"]:
            assert metrics_of(target["expr"]) <= exported(), panel["title"]


def test_panels_fill_the_grid_without_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.parametrize("unit", ["mfsd.service", "mfsd-coordinator.service"])
def test_systemd_accepts_the_units(unit: str) -> None:
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", DEPLOY / "systemd" / unit], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
