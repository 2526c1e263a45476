"""Settings of the studies by name.

stress: exaggerated parameters (KV times 4 to 32, half of all prefixes on one NIC, caches that keep nothing they fetch).
They show what an order does under contention, not how often contention occurs.
qwen-b: the base of the stress settings with the short prompts of another workload.
tiers: two of the stress settings with requests whose deadlines differ in length and worth (`weighted_attainment` of a
point).
node: Llama3-8B inside one server whose eight GPUs share 100 or 200 Gbit/s, with the KV of the model as it is; its
caches, too, keep nothing they fetch.
served: models as they are served: caches that keep what they fetch, decode workers chosen by load, KV as it is, and one
cause of contention each.
contended: those of the served settings in which contention costs `static` something, as `choose` found on seeds of its
own (data/chosen.json).
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import msgspec

from bench.sim.cluster import Config, ConfigError, SloTier
from bench.sim.point import Point
from bench.sim.profile import MODELS

GPUS = 384  # 6 prefill instances of 32


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for. Without a model and a workload of its own it has those that the command names."""

    group: str
    knobs: dict[str, Any]
    model: str | None = None
    workload: str | None = None
    gpus: int = GPUS
    knee_seeds: int = 1  # seeds on which `nocont` must meet its 90 %


TIERS = [SloTier(0.25, 2.0, 4), SloTier(0.5, 3.0, 2), SloTier(0.25, 6.0, 1)]
OWNERS: dict[str, Any] = {"cache": "first-owner", "decode_choice": "random"}


def _stress(**knobs: Any) -> Setting:
    return Setting(group="stress", knobs={**OWNERS, **knobs})


def _node(workload: str, gbps: float) -> Setting:
    return Setting(
        group="node",
        knobs={**OWNERS, "link_gbps": gbps},
        model="llama3-8b-node",
        workload=workload,
        gpus=128,
        knee_seeds=5,
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
SETTINGS |= {
    f"{name}-tiers": Setting(group="tiers", knobs={**SETTINGS[name].knobs, "slo_tiers": TIERS})
    for name in ("fan-in", "bursts")
}
SETTINGS["base-qwen-b"] = Setting(group="qwen-b", knobs=OWNERS, workload="qwen-b")
CHOSEN = "data/chosen.json"  # written by `choose`


class Served(msgspec.Struct, frozen=True):
    """A model as it is deployed: GPUs of the cluster and what else belongs to it."""

    gpus: int
    knobs: dict[str, Any]


# A KV cache of 40 GB is what an 80 GB GPU has beside the weights, less if these are large. Of the all-to-all of
# DeepSeek a token's experts lie on at most four servers, and half of it goes out in eight bits: 6 of 16 bytes.
SERVED: dict[str, Served] = {
    "llama3-8b-gpu": Served(64, {"cache_gb_per_gpu": 40.0}),
    "llama3-70b": Served(128, {"cache_gb_per_gpu": 40.0}),
    "deepseek-v3": Served(
        256, {"cache_gb_per_gpu": 20.0, "copies": 0.375, "accelerator": "h100", "batch_tokens": 32768}
    ),
    "llama2-7b": Served(64, {"cache_gb_per_gpu": 40.0}),
}
WORKLOADS = ("qwen-a", "mooncake-conversation", "mooncake-agent")
TENANT = "qwen-b"
"""The workload of the second tenant."""
CAUSES: dict[str, dict[str, Any]] = {
    "200g": {"link_gbps": 200.0},
    "100g": {"link_gbps": 100.0},
    "shared-200g": {"link_gbps": 200.0, "nics_per_server": 1},
    "shared-100g": {"link_gbps": 100.0, "nics_per_server": 1},
    "cold": {"link_gbps": 100.0, "cold": 0.5},
    "store": {"link_gbps": 100.0, "store_nics": -1},  # one for each server of prefill GPUs
    "bursts": {"link_gbps": 100.0, "burst": 4.0},
    "tenants": {"link_gbps": 100.0},
}


def _served() -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for model, served in SERVED.items():
        for workload in WORKLOADS:
            for cause, given in CAUSES.items():
                if "nics_per_server" in given and not MODELS[model].in_a_node:
                    continue  # collectives between servers do not use one NIC for eight GPUs
                knobs = {**served.knobs, **given}
                if knobs.get("store_nics"):
                    knobs["store_nics"] = served.gpus // 2 // MODELS[model].server_gpus
                two = cause == "tenants"  # with units of their own, and decode workers that they share
                settings[f"{model}.{workload}.{cause}"] = Setting(
                    group="served",
                    knobs=knobs,
                    model=f"{model},{model}" if two else model,
                    workload=f"{workload},{TENANT}" if two else workload,
                    gpus=served.gpus,
                    knee_seeds=3,
                )
    return settings


SETTINGS |= _served()
GROUPS = (*dict.fromkeys(setting.group for setting in SETTINGS.values()), "contended")


FORM = "or MODEL.WORKLOAD.CAUSE of " + "; ".join(", ".join(names) for names in (SERVED, WORKLOADS, CAUSES))
NAMES = f"{', '.join(name for name, setting in SETTINGS.items() if setting.group != 'served')}, {FORM}"
"""The available names, for messages."""


def chosen() -> dict[str, dict[str, Any]]:
    """Returns what `choose` found, by setting."""
    text = resources.files("bench.sim").joinpath(CHOSEN)
    return dict(json.loads(text.read_text())["settings"]) if text.is_file() else {}


def load_of(name: str) -> float:
    """Returns the load, relative to the knee, at which `choose` examined the setting; 1 if it did not."""
    return float(chosen().get(name, {}).get("load", 1.0))


def contended() -> list[str]:
    """Returns the settings that `choose` found contended."""
    if names := [name for name, found in chosen().items() if found["contended"]]:
        return names
    raise ConfigError("--setting contended: nothing is chosen yet; run python -m bench sim choose FILE --write")


def named(given: str, option: str = "--setting") -> list[str]:
    """Returns the settings that a list of names and groups stands for, each once."""
    names: dict[str, None] = {}
    for name in given.split(","):
        of_group = [key for key, setting in SETTINGS.items() if setting.group == name]
        if name == "contended":
            of_group = contended()
        if not of_group and name not in SETTINGS:
            raise ConfigError(f"{option} {name}: use {', '.join(GROUPS)} for all of a group, or {NAMES}")
        names |= dict.fromkeys(of_group or [name])
    return list(names)


def base_of(name: str, model: str, workload: str, requests: int, classes: int = 0, fetch: str = "loaded") -> Point:
    """Returns a point of the setting, with `model` and `workload` if it has none of its own. A third as many requests
    come first as warm-up."""
    setting = SETTINGS[name]
    config = Config(
        model=setting.model or model, gpus=setting.gpus, fabric_classes=classes, fetch=fetch, **setting.knobs
    )
    return Point(config=config, workload=setting.workload or workload, requests=requests, warmup=requests // 3)
