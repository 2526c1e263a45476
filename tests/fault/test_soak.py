"""The short form of `make soak`: everything that can die does, and nothing is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def soak(report: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "tests.soak", "--seed", "5", "--json", str(report), *options]


@pytest.mark.slow
def test_nothing_is_lost_while_everything_dies(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = subprocess.run(soak(file, "--seconds", "12"), cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(file.read_text())
    assert (report["held"], report["lost"], report["corrupted"]) == (True, 0, 0)
    assert report["seed"] == 5
    assert sum(report["faults"].values()) >= 1
    assert all(row["transfers"] > 0 for row in report["programs"].values()), report["programs"]
    assert "lost = 0, corrupted = 0" in result.stdout


def test_an_interrupt_gives_the_report_so_far(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    running = subprocess.Popen(soak(file), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    for line in running.stderr:
        if "transfers" in line:
            break
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=280)
    assert running.returncode == 0, output
    assert json.loads(file.read_text())["seconds"] < 3600
    assert "lost = 0" in output
