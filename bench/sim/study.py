"""python -m bench.sim.study FILE [--seeds N] [--policy a,b]: compares policies over the settings that make
or break contention.

Load is given relative to the rate at which NOCONT meets 90 % of the deadlines in the same setting; seeds
are paired. FILE collects
the results (JSON lines) and is continued when it exists."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import point as points
from bench.sim.cluster import Config
from bench.sim.point import Point

GPUS = 384  # 6 prefill instances of 32
SETTINGS: dict[str, dict[str, Any]] = {
    "base": {},
    "hot": {"hot_fraction": 0.5, "kv_scale": 4.0},
    "fan-in": {"decode_nics": 8, "kv_scale": 9.0},
    "egress": {"kv_scale": 16.0},
    "bursts": {"hot_fraction": 0.5, "kv_scale": 4.0, "burst": 4.0},
    "slow-hot": {"link_gbps": 100.0, "hot_fraction": 0.5, "kv_scale": 2.5},
    "skew": {"hot_fraction": 0.5, "kv_scale": 4.0, "expert_skew": 0.6},
}
SHORT_PROMPTS = 2.0  # qwen-b moves half the KV per second of compute: its KV is scaled by this much more


def sweep(options: argparse.Namespace) -> list[tuple[str, float, Point]]:
    result = []
    memory = options.file.with_suffix(".knees.json")
    knees: dict[str, float] = json.loads(memory.read_text()) if memory.exists() else {}
    for model in options.model.split(","):
        for workload in options.workload.split(","):
            for setting in options.setting.split(","):
                knobs = dict(SETTINGS[setting])
                if workload == "qwen-b" and "kv_scale" in knobs:
                    knobs["kv_scale"] *= SHORT_PROMPTS
                config = Config(model=model, gpus=GPUS, fabric_classes=options.fabric_classes, **knobs)
                base = Point(config=config, workload=workload, requests=options.requests, warmup=options.requests // 3)
                name = f"{model} {workload} {setting}"
                if name not in knees:
                    knees[name] = points.knee(msgspec.structs.replace(base, seed=1000))
                    memory.write_text(json.dumps(knees, indent=1))
                top = knees[name]
                for load in options.load:
                    for seed in range(1, options.seeds + 1):
                        point = msgspec.structs.replace(base, rate=round(load * top, 4), seed=seed)
                        result += [
                            (setting, load, msgspec.structs.replace(point, policy=policy))
                            for policy in options.policy.split(",")
                        ]
    return result


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("file", type=Path)
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--policy", default="fs,sjf,edf,karuna,static,paper,mfs,nocont")
    p.add_argument("--model", default="dbrx")
    p.add_argument("--workload", default="qwen-a,qwen-b")
    p.add_argument("--setting", default=",".join(SETTINGS))
    p.add_argument("--load", type=float, nargs="+", default=[0.9, 1.1], help="relative to the knee")
    p.add_argument("--requests", type=int, default=600)
    p.add_argument("--fabric-classes", type=int, default=0)
    options = p.parse_args()
    done = set()
    if options.file.exists():
        for line in options.file.read_text().splitlines():
            row = json.loads(line)
            done.add(
                (
                    row["setting"],
                    row["model"],
                    row["workload"],
                    row["relative"],
                    row["seed"],
                    row["policy"],
                    row["classes"],
                )
            )
    for setting, load, point in sweep(options):
        key = (
            setting,
            point.config.model,
            point.workload,
            load,
            point.seed,
            point.policy,
            options.fabric_classes,
        )
        if key in done:
            continue
        row = {
            "setting": setting, "model": point.config.model, "workload": point.workload, "relative": load,
            "classes": options.fabric_classes, **points.run(point),
        }  # fmt: skip
        with options.file.open("a") as out:
            out.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
