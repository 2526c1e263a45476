"""`bench micro permits`, briefly: every case runs, is named as the bars name it, and what is held stays held."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pytest

from bench.micro import permits
from bench.report.bars import BARS, find
from tests.support.native import CorePrograms, core

COMPILER = """#!/bin/sh
for last; do :; done
for word; do [ "$word" = -c ] && exec cp "{core}/${{last##*/}}" "$last"; done
exec cc "$@"
"""


@pytest.fixture(scope="module", autouse=True)
def core_of_other_tests(core_programs: CorePrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the core is compiled to is there, less optimised: to compile it again takes longer than all else here, which
    looks at no times. The programs are kept apart from those that a benchmark would find."""
    core_objects = core_programs.objects("plain", core("arbiter/arbiter.c"))
    folder = tmp_path_factory.mktemp("permits")
    (compiler := folder / "cc").write_text(COMPILER.format(core=core_objects[0].parent))
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permits, "compiler", lambda name, package: str(compiler))
        patch.setattr(permits, "BUILD", folder)
        permits.build.cache_clear()
        yield
        permits.build.cache_clear()


def test_a_short_run_has_every_figure() -> None:
    parser = argparse.ArgumentParser()
    permits.add_options(parser)
    kept: list[dict[str, Any]] = []
    options = parser.parse_args(["--rounds", "2", "--repeats", "1", "--clients-max", "100"])
    results = permits.run(options, kept.append)
    assert kept[-1] == results
    for bar in BARS:
        if bar.bench == "permits":
            assert (find(results, bar.key) or 0) > 0, bar.key
    assert set(results["heartbeat_cpu_ns"]) == {f"nics_{n}_programs_{p}" for n in (1, 64) for p in (1, 8)}
    assert min(results["heartbeat_cpu_ns"].values()) > 0
    assert set(results["clients_active"]) == {"10", "100", "cost_ratio"}


def test_those_that_say_nothing_are_not_looked_at_and_the_held_wait() -> None:
    program, _ = permits.build()
    figures = permits.measured(program, permits.Case(active=20, attached=60, held=500), rounds=30)
    assert (figures["waiting"], figures["permits"]) == (500, 30_000)
    assert figures["active"] < 60


def test_ratios_are_of_the_fastest_rounds() -> None:
    figures = permits.summary({"held/1000": [200.0, 100.0], "held/10000": [1.0], "held/100000": [120.0, 150.0]})
    assert figures["held"]["cost_ratio"] == 1.2
    assert figures["held"]["1000"]["permits_per_s"] == 10_000_000
