"""Lengths of prompts and outputs: drawn from a recorded trace if one is given, else from its published quantiles.

data/lengths.json holds the quantiles and names their sources. Lengths drawn from quantiles are generated: prompt and
output are independent, and nothing beyond the last quantile is known. Rows of a trace keep prompt and output together.
"""

from __future__ import annotations

import json
import random
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from bench.requests.errors import UsageError
from bench.sim.generators import Curve
from bench.sim.workload import read_lengths

TRACES = {
    "azure-code": "azure2023_code",
    "sharegpt": "lengths_sharegpt8k_llama2",
    "sharegpt-turns": "lengths_sharegpt_v3",
}
"""Distribution -> name of its trace in a folder of traces, .parquet or .jsonl."""
ENDINGS = (".parquet", ".jsonl")


class Tokens(NamedTuple):
    prompt: int
    output: int


class Lengths:
    """Draws prompt and output tokens; `source` names their origin."""

    def __init__(self, name: str, traces: Path | None) -> None:
        statistics = published()
        if name not in TRACES:
            raise UsageError(f"workload {name}: use {', '.join(TRACES)}")
        self._rows: list[Tokens] = []
        if traces is None:
            self.source = f"generated from quantiles: {statistics[name]['source']}"
            self._prompt, self._output = curve(statistics[name]["prompt"]), curve(statistics[name]["output"])
        else:
            path = trace_file(traces, TRACES[name])
            self._rows = [Tokens(prompt, max(1, output)) for prompt, output in read_lengths(path)]
            self.source = f"rows of {path.name}, drawn with replacement"

    def draw(self, chance: random.Random) -> Tokens:
        if self._rows:
            return chance.choice(self._rows)
        return Tokens(max(1, round(self._prompt.at(chance.random()))), max(1, round(self._output.at(chance.random()))))


def published() -> dict[str, Any]:
    text = resources.files("bench.requests").joinpath("data/lengths.json").read_text()
    return dict(json.loads(text))


def curve(quantiles: dict[str, float]) -> Curve:
    """Returns the inverse of the distribution through the quantiles (percent -> value), flat beyond the first and the
    last."""
    return Curve(sorted((float(percent) / 100, float(value)) for percent, value in quantiles.items()))


def trace_file(folder: Path, name: str) -> Path:
    for ending in ENDINGS:
        path = folder / (name + ending)
        if path.is_file():
            return path
    raise UsageError(
        f"--traces {folder}: holds no {' or '.join(name + ending for ending in ENDINGS)}; add it, or leave --traces "
        "out for generated lengths"
    )
