"""Every metric that a daemon, an engine, a gateway or a coordinator exports, and where the dashboard shows it.

``python -m tests.unit.deploy.metric_table docs/metrics.md`` brings the tables of that page up to date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client import Counter
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from mfsd.cli.message_json import plain
from mfsd.node.totals import Totals
from mfsd.observe import coordinator_metrics
from mfsd.observe.metrics import families
from mfsd.proto import mfs_pb2 as pb
from mfsd.serve import metrics as metrics_of_serve
from mfsd.serve.gateway.metrics import Metrics as MetricsOfGateway
from mfsd.text import with_part
from tests.unit.observe.test_metrics import CLIENT, status

DASHBOARD = Path(__file__).resolve().parents[3] / "deploy" / "grafana" / "mfs.json"
BEGIN, END = "<!-- begin of generated table -->", "<!-- end of generated table -->"
BEGIN_3, END_3 = "<!-- begin of engines' table -->", "<!-- end of engines' table -->"
BEGIN_4, END_4 = "<!-- begin of gateways' table -->", "<!-- end of gateways' table -->"
BEGIN_2, END_2 = "<!-- begin of coordinators' table -->", "<!-- end of coordinators' table -->"
LEFT_OUT = {
    "mfs_arbiter_messages_total": "the arbiter's processor time says what they cost",
    "mfs_tasks_on_credit_total": "beside mfs_tasks_permitted_total it says how often nothing waits",
    "mfs_clients_by_abi": "changes with upgrades; `mfsctl status` and the doctor name them",
    "mfs_attached_clients_total": "those attached now are on a panel",
    "mfs_gateway_engine_changes_total": "for gateways that start engines; `mfsctl gateway status` shows their stages",
    "mfs_gateway_ext_proc_streams": "for endpoint pickers alone; mfs_gateway_picked_total is on a panel",
    "mfs_gateway_overhead_seconds": "measured by `python -m bench micro gateway`",
    "mfs_gateway_port_owed_bytes": "ports have panels of their own",
    "mfs_gateway_prediction_error_tokens": "for gateways with a learned model; tells whether it is worth having",
    "mfs_gateway_programs": "says nothing of load",
    "mfs_gateway_unusable_words_total": "a client's mistake; each kind is logged once",
    "mfs_nic_utilization_ratio": "mfs_nic_carried_bytes_total over mfs_nic_rate_bytes_per_second says it over any time",
}
"""Not on a panel, and why."""


def rows() -> list[tuple[str, list[dict[str, Any]]]]:
    """Title of each row of the dashboard, and its panels that have queries: within a collapsed row, else behind it."""
    found: list[tuple[str, list[dict[str, Any]]]] = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] == "row":
            found.append((panel["title"], list(panel["panels"])))
        elif panel["type"] != "text":
            found[-1][1].append(panel)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for _, inside in rows() for panel in inside]


def metrics_of(expression: str) -> set[str]:
    """Of a histogram its own name."""
    found = set(re.findall(r"\bmfs_\w+", expression))
    histograms = {name for name, (kind, _, _) in exported_by_gateways().items() if kind == "histogram"}
    return {base if (base := re.sub(r"_(bucket|sum|count)$", "", name)) in histograms else name for name in found}


Described = dict[str, tuple[str, str, str]]
"""Name of each sample -> kind, labels, meaning."""


def _described(made: Iterable[Metric]) -> Described:
    return {
        sample.name: (family.type, ", ".join(f"`{label}`" for label in sample.labels), family.documentation)
        for family in made
        for sample in family.samples
    }


def exported() -> Described:
    return _described(families(status([CLIENT], Totals())))


def exported_by_coordinators() -> Described:
    reply = pb.StatusReply()
    reply.nodes.add().ports.add(name="10.0.0.1/in")
    reply.tiers.add().tier.policies["fit"] = 1
    return _described(coordinator_metrics.families(plain(reply)))


def shown() -> dict[str, list[str]]:
    """Name of each metric that the dashboard uses -> titles of its panels."""
    found: dict[str, list[str]] = {}
    for panel in panels():
        for name in set().union(*(metrics_of(target["expr"]) for target in panel["targets"])):
            found.setdefault(name, []).append(panel["title"])
    return found


def table(metrics: Described) -> str:
    lines = ["| metric | kind | labels | meaning | panel |", "|---|---|---|---|---|"]
    on_panels = shown()
    for name, (kind, labels, meaning) in sorted(metrics.items()):
        where = "; ".join(on_panels.get(name, [])) or f"none: {LEFT_OUT[name]}"
        lines.append(f"| `{name}` | {kind} | {labels} | {meaning} | {where} |")
    return "\n".join(lines) + "\n"


def table_of_engines() -> str:
    """Of the request tier, which no panel shows yet."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for kind, metrics, ending in (
        ("counter", metrics_of_serve.COUNTERS, "_total"),
        ("gauge", metrics_of_serve.GAUGES, ""),
        ("histogram", metrics_of_serve.HISTOGRAMS, ""),
    ):
        for name, (text, labels) in sorted(metrics.items()):
            named = ", ".join(f"`{label}`" for label in (metrics_of_serve.ENGINE, *labels))
            lines.append(f"| `{name}{ending}` | {kind} | {named} | {text} |")
    return "\n".join(lines) + "\n"


def exported_by_gateways() -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Name of each metric as Prometheus asks for it -> kind, labels, meaning."""
    found = {}
    for metric in vars(MetricsOfGateway()).values():
        if isinstance(metric, MetricWrapperBase):
            ((family,), ending) = metric.describe(), "_total" if isinstance(metric, Counter) else ""
            found[family.name + ending] = family.type, metric._labelnames, family.documentation
    return found


def table_of_gateways() -> str:
    return table(
        {
            name: (kind, ", ".join(f"`{label}`" for label in labels), meaning)
            for name, (kind, labels, meaning) in exported_by_gateways().items()
        }
    )


def updated(page: str) -> str:
    """The page with the tables between their marks written anew."""
    page = with_part(page, BEGIN, table(exported()), END)
    page = with_part(page, BEGIN_3, table_of_engines(), END_3)
    page = with_part(page, BEGIN_4, table_of_gateways(), END_4)
    return with_part(page, BEGIN_2, table(exported_by_coordinators()), END_2)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(updated(target.read_text()))
