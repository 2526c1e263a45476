"""The page of the classes that ship is what its generator writes from the rows beside it, and others quote it right."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.sim import classes_page
from bench.sim.classes_findings import gain, gains, span
from bench.sim.classes_rows import Data, load

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "results" / "classes.md"
AGAIN = "run: python -m bench sim classes --page docs/results/classes.md"


@pytest.fixture(scope="module")
def data() -> Data:
    found = load(PAGE)
    assert found is not None
    return found


def test_the_page_is_what_its_rows_say(data: Data) -> None:
    assert PAGE.read_text() == classes_page.text(data), AGAIN


def quoted(data: Data) -> list[str]:
    """What others say of the page: the range as served, the gains that they name under stress and in a node."""
    served = [figure.gain for figure in gains(data, "served").values()]
    stress, node = ("fan-in", "bursts", "egress"), ("node-qwen-a-12.5", "node-agent-12.5")
    named = [*(("stress", setting) for setting in stress), *(("node", setting) for setting in node)]
    figures = [data.against(section, setting, "mfs") for section, setting in named]
    return [f"{span(served, '+.1f')} points", *(gain(figure) for figure in figures if figure)]


@pytest.mark.parametrize("page", ["README.md", "docs/simulation.md"])
def test_what_others_quote_is_on_the_page(data: Data, page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    missing = [quote for quote in quoted(data) if quote not in text]
    assert not missing, f"{page} quotes other figures than docs/results/classes.md"
