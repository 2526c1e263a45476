"""python -m bench micro NAME [--json FILE]: runs bench/micro/NAME.py, whose run() returns its results as a
dict."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import sys
from pathlib import Path

import bench.micro

HELPERS = ("command", "daemon", "paired", "coordinator_leader", "coordinator_load")


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(bench.micro.__path__) if m.name not in HELPERS)


def machine() -> dict[str, object]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench micro", description=__doc__)
    parser.add_argument("name", choices=names(), help="the part to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {bench, machine, results} here")
    options = parser.parse_args(arguments)
    results = importlib.import_module(f"bench.micro.{options.name}").run()
    report = {"bench": options.name, "machine": machine(), "results": results}
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    json.dump(report, sys.stdout, indent=2)
    print()
    return 0
