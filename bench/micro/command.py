"""python -m bench micro NAME [--json FILE]: runs bench/micro/NAME.py, whose run() returns its results as a
dict.

A benchmark with `add_options` has options of its own (`python -m bench micro NAME --help`): its run() is given them and
a function that takes the results so far, which are in the file from then on. One with CAGED runs in namespaces of its
own.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import pkgutil
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import bench.micro
from mfsd.playground.sandbox import SandboxError, run_sandboxed

HELPERS = (
    *("command", "daemon", "paired", "coordinator_leader", "coordinator_load"),
    *("link", "link_command", "loads", "nccl_wheel", "traffic"),
)
INTERRUPTED = 130


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


def purpose(name: str) -> str:
    """The first sentence of the benchmark's own description."""
    text = ast.get_docstring(ast.parse(Path(__file__).with_name(f"{name}.py").read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def parser(name: str | None) -> argparse.ArgumentParser:
    """Of all benchmarks; with the options of the one that is to run."""
    parser = argparse.ArgumentParser(
        prog="python -m bench micro", description=(__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    )
    benchmarks = parser.add_subparsers(dest="name", required=True, metavar="NAME", title="the part to measure")
    for one in names():
        about = purpose(one).replace("%", "%%")
        shown = benchmarks.add_parser(one, help=about, description=about)
        shown.add_argument("--json", type=Path, metavar="FILE", help="write {bench, machine, results} here")
        if one == name and hasattr(module := importlib.import_module(f"bench.micro.{one}"), "add_options"):
            module.add_options(shown)
    return parser


def measure(module: ModuleType, options: argparse.Namespace) -> int:
    report: dict[str, Any] = {"bench": options.name, "machine": machine(), "results": {}}

    def keep(results: dict[str, Any]) -> None:
        report["results"] = results
        if options.json:
            beside = options.json.with_name(options.json.name + ".part")
            beside.write_text(json.dumps(report, indent=2) + "\n")
            beside.replace(options.json)

    if hasattr(module, "add_options"):
        try:
            keep(module.run(options, keep))
        except KeyboardInterrupt:
            print("bench micro: stopped; what was measured is in the --json file", file=sys.stderr)
            return INTERRUPTED
    else:
        keep(module.run())
    json.dump(report, sys.stdout, indent=2)
    print()
    return 0


def main(arguments: list[str]) -> int:
    options = parser(next((word for word in arguments if not word.startswith("-")), None)).parse_args(arguments)
    module = importlib.import_module(f"bench.micro.{options.name}")
    if not getattr(module, "CAGED", False):
        return measure(module, options)
    if hasattr(module, "prepare"):
        module.prepare(options)
    try:
        return run_sandboxed(lambda: measure(module, options))
    except SandboxError as error:
        print(f"bench micro {options.name}: cannot make hosts: {error}", file=sys.stderr)
        return 2
