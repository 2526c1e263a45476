"""The testbed's page in a real browser: complete in one file, the links over time in every class's colour, light and
dark."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from bench.testbed import page
from bench.testbed.hosts import PortSample
from bench.testbed.leg import LegResult, Served
from bench.testbed.measure import result_of
from bench.testbed.modes import MODES
from bench.testbed.scale import Scale
from bench.testbed.scenario import Scenario
from bench.testbed.show import COLOURS, WATCHED

MS = 1_000_000
SHOWN = ("fifo", "dscp", "mfs")
USED = {"fifo": [7], "dscp": [1, 2, 3], "mfs": [0, 1, 2, 6]}


def leg(mode: str) -> LegResult:
    """Ten seconds in which the classes of the mode take turns at a link, a second each."""
    samples = [PortSample(0, [0] * 8)]
    for second in range(10):
        sent = list(samples[-1].bytes_by_class)
        sent[USED[mode][second % len(USED[mode])]] += 30_000_000
        samples.append(PortSample((second + 1) * 1000 * MS, sent))
    served = [Served(0, 0, 400 * MS, 100 * MS, prefill_end_ns=90 * MS, kv_ns=300 * MS, kv_bytes=8)]
    both = {host: list(samples) for host in WATCHED}
    return LegResult(mode, 1, 0, 10**10, served, [(0, 12 * MS)], {}, both, 1.0, 2.5)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    legs = [leg(mode) for mode in SHOWN]
    results = [result_of(one, Scenario(), 0.5) for one in legs]
    modes = [MODES[mode] for mode in SHOWN]
    page.write(tmp_path / "new" / "demo.html", "First tokens <soon>", legs, results, modes, Scale())
    return tmp_path / "new" / "demo.html"


def browse(file: Path, *options: str) -> str:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser, "no browser: apt-get install chromium"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={file.parent}/browser", "--hide-scrollbars", "--window-size=1200,1400", *options]
    return subprocess.run([*command, file.as_uri()], capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_page_is_complete_without_a_network(written: Path) -> None:
    text = written.read_text()
    assert not re.search(r"https?:|src=|url\(|@import|<link|<script", text)


def test_a_browser_shows_figures_and_links(written: Path) -> None:
    seen = browse(written, "--dump-dom")
    assert "First tokens &lt;soon&gt;" in seen, "text is text"
    for mode in SHOWN:
        assert f"{mode}: {MODES[mode].says}" in seen
    assert seen.count("<svg") == len(SHOWN) * len(WATCHED)
    assert "class 7: everything" in seen and "class 0: collectives" in seen and "class 6: KV pushes" in seen
    assert re.search(r"<td>300\b", seen) and re.search(r"<td>12\.0\b", seen), "TTFT and CCT, ms"
    assert re.search(r"<td>25\b", seen), "what MFS takes of a core"


@pytest.mark.parametrize(("scheme", "dark"), [(1, False), (0, True)])
def test_every_class_has_its_colour_in_light_and_dark(written: Path, scheme: int, dark: bool) -> None:
    shot = written.parent / "shot.png"
    browse(written, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={shot}")
    pixels = np.rint(imread(shot)[:, :, :3] * 255).astype(int)
    assert bool(pixels[2, 2].mean() < 80) is dark, "paper"
    ink = pixels.min() if not dark else pixels.max()
    assert abs(int(ink) - int(pixels[2, 2].mean())) > 180, "ink is reported from paper"
    for k in {k for used in USED.values() for k in used}:
        colour = [int(COLOURS[k][i : i + 2], 16) for i in (1, 3, 5)]
        assert (pixels == colour).all(axis=2).sum() > 500, f"class {k} is drawn"
