"""Every metric that a daemon exports, and where the dashboard shows it.

``python -m tests.unit.deploy.metric_table docs/metrics.md`` brings the table of that page up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from mfsd.node.totals import Totals
from mfsd.observe.metrics import families
from mfsd.text import with_part
from tests.unit.observe.test_metrics import CLIENT, status

DASHBOARD = Path(__file__).resolve().parents[3] / "deploy" / "grafana" / "mfs.json"
BEGIN, END = "<!-- begin of generated table -->", "<!-- end of generated table -->"
LEFT_OUT = {
    "mfs_arbiter_messages_total": "the arbiter's processor time says what they cost",
    "mfs_tasks_on_credit_total": "beside mfs_tasks_permitted_total it says how often nothing waits",
    "mfs_clients_by_abi": "changes with upgrades; `mfsctl status` and the doctor name them",
    "mfs_attached_clients_total": "those attached now are on a panel",
    "mfs_nic_utilization_ratio": "mfs_nic_carried_bytes_total over mfs_nic_rate_bytes_per_second says it over any time",
    "mfs_nic_carried_bytes_total": "`mfsctl top` and `mfsctl status` show it; its panel is still to come",
    "mfs_nic_rate_bytes_per_second": "does not change; `mfsctl status` shows it",
}
"""Not on a panel, and why."""


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text())["panels"]  # type: ignore[no-any-return]


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\bmfs_\w+", expression))


def exported() -> dict[str, tuple[str, str, str]]:
    """Name of each sample -> kind, labels, meaning."""
    return {
        sample.name: (family.type, ", ".join(f"`{label}`" for label in sample.labels), family.documentation)
        for family in families(status([CLIENT], Totals()))
        for sample in family.samples
    }


def shown() -> dict[str, list[str]]:
    """Name of each metric that the dashboard uses -> titles of its panels."""
    found: dict[str, list[str]] = {}
    for panel in panels():
        for name in set().union(*(metrics_of(target["expr"]) for target in panel["targets"])):
            found.setdefault(name, []).append(panel["title"])
    return found


def table() -> str:
    lines = ["| metric | kind | labels | meaning | panel |", "|---|---|---|---|---|"]
    on_panels = shown()
    for name, (kind, labels, meaning) in sorted(exported().items()):
        where = "; ".join(on_panels.get(name, [])) or f"none: {LEFT_OUT[name]}"
        lines.append(f"| `{name}` | {kind} | {labels} | {meaning} | {where} |")
    return "\n".join(lines) + "\n"


def updated(page: str) -> str:
    """The page with the table between its two marks written anew."""
    return with_part(page, BEGIN, table(), END)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(updated(target.read_text()))
