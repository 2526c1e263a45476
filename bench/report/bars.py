"""The bars that MFS holds itself to, each with the place of its figure in a benchmark's results."""

from __future__ import annotations

from typing import Any

import msgspec

ANOTHER_MACHINE = "internals/core.md#the-same-code-on-another-machine"
"""Of bars in time, and of those that a minute of a busy machine decides: older code beside the present one."""
NIXL_COST = "nixl.md#what-it-costs"


class Bar(msgspec.Struct, frozen=True):
    """One promise. `key` is a path in the benchmark's `results` (parts by slashes); `at_most` false means
    at least. Where the results have an interval beside it (`key`_interval: where the figure lies, 95 %), the figure is
    decided all the same, and the interval says how sure that is. `why`: where in docs/ it is said why the bar is missed
    where it is."""

    bench: str
    key: str
    what: str
    unit: str
    limit: float
    at_most: bool = True
    why: str = ""

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def verdict(self, value: float, interval: tuple[float, float] | None) -> str:
        verdict = "holds" if self.holds(value) else "**missed**"
        sure = interval is None or all(self.holds(end) == self.holds(value) for end in interval)
        reason = f", [why]({self.why})" if self.why and not self.holds(value) else ""
        return f"{verdict}{'' if sure else ', within the interval'}{reason}"

    def text(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:,g} {self.unit}".strip()


BARS = (
    Bar("shim", "added_ns_p50", "shim, per work request (median)", "ns", 50),
    Bar(
        "shim",
        "message_rate_ratio",
        "ib_write_bw message rate, shim / no shim",
        "",
        0.97,
        at_most=False,
        why="internals/shim.md#message-rate",
    ),
    Bar("permit", "rtt_us_p50", "permit round trip, arbiter spinning (median)", "us", 2, why=ANOTHER_MACHINE),
    Bar("permit", "rtt_us_p99", "permit round trip, arbiter spinning (p99)", "us", 20, why=ANOTHER_MACHINE),
    Bar(
        "permit",
        "credit_us_p50",
        "permit on credit, where nothing waits, arbiter asleep (median)",
        "us",
        2,
        why=ANOTHER_MACHINE,
    ),
    Bar(
        "permit",
        "wake_us_p50",
        "permit round trip that wakes a sleeping arbiter (median)",
        "us",
        60,
        why=ANOTHER_MACHINE,
    ),
    Bar(
        "permits",
        "nics/8/permits_per_s",
        "permits of one arbiter's thread for 8 NICs, a core to itself",
        "/s",
        3e6,
        False,
        why="internals/core.md#more-than-one-thread",
    ),
    Bar(
        "permits",
        "nics/8/permits_per_s",
        "the same; what 8 NICs of 400 Gbit/s, full in both directions, ask for in tasks of 512 KiB",
        "/s",
        1.53e6,
        False,
        why="internals/core.md#more-than-one-thread",
    ),
    Bar(
        "permits",
        "clients_attached/cost_ratio",
        "cost of a permit, 1,000 clients attached / 10, 10 of them active",
        "",
        1.2,
    ),
    Bar("permits", "idle_nics/cost_ratio", "cost of a permit, one a turn, beside 63 idle NICs / none", "", 1.2),
    Bar(
        "permits",
        "clients_active/cost_ratio",
        "cost of a permit, 1,000 clients active / 10",
        "",
        1.2,
        why="internals/core.md#more-than-one-thread",
    ),
    Bar("permits", "queue_pairs/cost_ratio", "cost of a permit, 10,000 queue pairs / 100", "", 1.2),
    Bar("permits", "held/cost_ratio", "cost of a permit, 100,000 held tasks / 1,000", "", 1.2),
    Bar(
        "rmlq",
        "ops_per_s",
        "reverse multi-level queue, submit + pick at 100,000 queued",
        "/s",
        5e6,
        at_most=False,
        why=ANOTHER_MACHINE,
    ),
    Bar(
        "coordinator", "event_cpu_ms_p99", "coordinator, one event of 1,024 daemons with 10,000 batches (p99)", "ms", 1
    ),
    Bar("coordinator", "takeover_s", "coordinator, leader killed until the next one's order", "s", 3),
    Bar(
        "plan",
        "release_cpu_ms_p99",
        "plan core, four merged events at 10,000 batches, worst shape (p99)",
        "ms",
        1,
        why="internals/plan.md#cost",
    ),
    Bar(
        "fluid",
        "nic_only_10k_load_0.5/events_per_cpu_s",
        "simulator's rates, 10,000 flows at load 0.5, events per CPU second",
        "/s",
        100_000,
        at_most=False,
    ),
    Bar(
        "fluid",
        "full_mesh_32_instances_8_classes/events_per_cpu_s",
        "simulator's rates, 32 instances of full-mesh collectives in 8 classes",
        "/s",
        50_000,
        at_most=False,
    ),
    Bar(
        "mooncake",
        "rdma/overhead_percent",
        "Mooncake adapter, of a 1 MiB write over soft RoCE (median)",
        "%",
        1,
        why=ANOTHER_MACHINE,
    ),
    Bar(
        "mooncake",
        "tcp/overhead_percent",
        "Mooncake adapter, of a 1 MiB write over loopback TCP (median)",
        "%",
        1,
        why=ANOTHER_MACHINE,
    ),
    *(
        Bar(
            bench,
            f"{transport}/overhead_percent",
            f"{what}, of a 1 MiB write over {over} (median)",
            "%",
            1,
            why=NIXL_COST,
        )
        for bench, what in (("nixl", "NIXL adapter"), ("nixl_plugin", "NIXL plugin, asking less switched off"))
        for transport, over in (("rdma", "soft RoCE"), ("tcp", "loopback TCP"))
    ),
    Bar(
        "gate",
        "kv_share_min",
        "KV beside NCCL, worst case, of what the link has left or of observe",
        "",
        0.9,
        False,
        why="internals/window.md#measured",
    ),
    Bar(
        "gate",
        "collective_p50_of_alone_max",
        "NCCL's messages beside KV, worst median, enforce / alone",
        "",
        1.15,
        why="internals/window.md#measured",
    ),
    Bar(
        "gate", "collective_p50_of_observe_max", "NCCL's messages beside KV, worst median, enforce / observe", "", 1.05
    ),
    Bar(
        "window",
        "free_share_min",
        "free destinations beside a slow one, worst case, enforce / observe",
        "",
        0.9,
        False,
        why="internals/window.md#measured",
    ),
    Bar("window", "slow_share_min", "slow destinations, worst case, enforce / observe", "", 0.9, False),
    Bar(
        "gateway",
        "whole/added_ms_p99",
        "gateway, added to a request at 500/s, whole answers (p99)",
        "ms",
        2,
        why=ANOTHER_MACHINE,
    ),
    Bar(
        "gateway",
        "stream/first_added_ms_p99",
        "gateway, added to a first event at 500/s, streams (p99)",
        "ms",
        2,
        why=ANOTHER_MACHINE,
    ),
    Bar(
        "gateway",
        "stream/added_ms_p99",
        "gateway, added to a request at 500/s, streams of 8 events (p99)",
        "ms",
        2,
        why=ANOTHER_MACHINE,
    ),
    Bar("idle", "cpu_fraction", "idle daemon, share of one core", "", 0.01),
    Bar("idle", "rss_mib", "idle daemon, resident memory", "MiB", 60),
)


def find(results: dict[str, Any], key: str) -> float | None:
    value = _at(results, key)
    return float(value) if isinstance(value, (int, float)) else None


def find_interval(results: dict[str, Any], key: str) -> tuple[float, float] | None:
    """The ends of the interval in which the figure lies, if the benchmark states one."""
    value = _at(results, f"{key}_interval")
    return (float(value[0]), float(value[1])) if isinstance(value, list) else None


def _at(results: dict[str, Any], key: str) -> Any:
    value: Any = results
    for part in key.split("/"):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value
