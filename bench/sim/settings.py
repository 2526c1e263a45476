"""Settings of the studies by name.

stress: knobs that exaggerate (KV times 4 to 32, half of all prefixes on one NIC, caches that keep nothing they fetch).
They say what an order does under contention, not how often there is any.
node: Llama3-8B inside one server whose eight GPUs share 100 or 200 Gbit/s, the KV of the model as it is."""

from __future__ import annotations

from typing import Any

import msgspec

from bench.sim.cluster import Config, ConfigError
from bench.sim.point import Point

GPUS = 384  # 6 prefill instances of 32


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for. Without a model and a workload of its own: those that the command names."""

    group: str
    knobs: dict[str, Any]
    model: str | None = None
    workload: str | None = None
    gpus: int = GPUS
    knee_seeds: int = 1  # on which `nocont` is held against its 90 %


def _stress(**knobs: Any) -> Setting:
    return Setting(group="stress", knobs=knobs)


def _node(workload: str, gbps: float) -> Setting:
    return Setting(
        group="node", knobs={"link_gbps": gbps}, model="llama3-8b-node", workload=workload, gpus=128, knee_seeds=5
    )


SETTINGS: dict[str, Setting] = {
    "base": _stress(),
    "hot": _stress(hot_fraction=0.5, kv_scale=4.0),
    "fan-in": _stress(decode_nics=8, kv_scale=12.0),
    "egress": _stress(kv_scale=32.0),
    "bursts": _stress(hot_fraction=0.5, kv_scale=12.0, burst=4.0),
    "slow-hot": _stress(link_gbps=100.0, hot_fraction=0.5, kv_scale=2.5),
    "skew": _stress(hot_fraction=0.5, kv_scale=4.0, expert_skew=0.6),
    "node-conversation-12.5": _node("mooncake-conversation", 12.5),
    "node-qwen-a-12.5": _node("qwen-a", 12.5),
    "node-agent-12.5": _node("mooncake-agent", 12.5),
    "node-conversation-25": _node("mooncake-conversation", 25.0),
    "node-qwen-a-25": _node("qwen-a", 25.0),
    "node-agent-25": _node("mooncake-agent", 25.0),
}
GROUPS = tuple(dict.fromkeys(setting.group for setting in SETTINGS.values()))


def named(given: str, option: str = "--setting") -> list[str]:
    """The settings that a list of names and groups stands for, each once."""
    chosen: dict[str, None] = {}
    for name in given.split(","):
        of_group = [key for key, setting in SETTINGS.items() if setting.group == name]
        if not of_group and name not in SETTINGS:
            raise ConfigError(f"{option} {name}: use {', '.join(GROUPS)} for all of a group, or {', '.join(SETTINGS)}")
        chosen |= dict.fromkeys(of_group or [name])
    return list(chosen)


def base_of(name: str, model: str, workload: str, requests: int, classes: int = 0, fetch: str = "loaded") -> Point:
    """A point of the setting; `model` and `workload` where it has none of its own. As warm-up a third as many requests
    come first."""
    setting = SETTINGS[name]
    config = Config(
        model=setting.model or model, gpus=setting.gpus, fabric_classes=classes, fetch=fetch, **setting.knobs
    )
    return Point(config=config, workload=setting.workload or workload, requests=requests, warmup=requests // 3)
