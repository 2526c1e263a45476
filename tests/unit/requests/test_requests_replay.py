"""Recorded plans come out the same again, and one that was altered is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.requests import command
from mfsd.policy.serve import Request, ServeConfig, ServeState, StepView, plan_step

records = pytest.importorskip("mfsd.serve.records")


def record(path: Path, steps: int = 5) -> None:
    recorder = records.Recorder(path, pytest.fail)
    config, state = ServeConfig(), ServeState()
    for step in range(steps):
        waiting = tuple(
            Request(request_id=n, arrival_s=0.1 * n, num_prompt_tokens=100 * (n + 1), due_s=5.0 - n)
            for n in range(step + 1)
        )
        view = StepView(waiting=waiting)
        plan, after = plan_step(view, state, config, 1.0 + step)
        recorder.step(config, state, view, 1.0 + step, plan, after)
        state = after
    recorder.close()


def test_recorded_plans_are_equal_and_an_altered_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "d.jsonl"
    record(path)
    assert command.main(["replay", str(path)]) == 0
    assert "5 of 5 plans" in capsys.readouterr().out
    lines = path.read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace('"num_tokens":100', '"num_tokens":99', 1)
    path.write_text("".join(lines))
    assert command.main(["replay", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "4 of 5 plans" in shown and "d.jsonl:4: scheduled was" in shown


@pytest.mark.parametrize("text", ["", "{}\n", "not json\n"])
def test_what_is_no_record_gets_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(text)
    assert command.main(["replay", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "d.jsonl" in error
    assert command.main(["replay", str(tmp_path / "none.jsonl")]) == 2
