"""Decisions on record: each file stands alone, and a plan that comes out otherwise is found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mfsd.policy.serve import Request, ServeConfig, ServeState, StepView, plan_step
from mfsd.serve.records import Recorder, RecordError, files_of, read, replay

CONFIG = ServeConfig(step_tokens=100)


def view(at: int) -> StepView:
    waiting = [Request(request_id=at * 10 + i, arrival_s=at, num_prompt_tokens=40, due_s=at + i) for i in range(1, 5)]
    return StepView(waiting=tuple(waiting))


def recorded(path: Path, steps: int = 20, size_max_bytes: int = 1 << 20, files: int = 4) -> list[str]:
    warnings: list[str] = []
    recorder = Recorder(path, warnings.append, "e", size_max_bytes, files)
    state = ServeState()
    for at in range(steps):
        plan, after = plan_step(view(at), state, CONFIG, float(at))
        recorder.step(CONFIG, state, view(at), float(at), plan, after)
        state = after
    recorder.close()
    return warnings


def test_every_plan_is_made_again_to_the_bit(tmp_path: Path) -> None:
    assert recorded(tmp_path / "e.jsonl") == []
    replayed = replay(tmp_path / "e.jsonl")
    assert (replayed.steps, replayed.differing, replayed.cut) == (20, 0, ())
    assert replayed.equal


def test_rotated_files_stand_alone_and_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    recorded(path, steps=60, size_max_bytes=16_000, files=3)
    names = [file.name for file in files_of(tmp_path)]
    assert names == ["e.jsonl", "e.jsonl.1", "e.jsonl.2"]
    for file in files_of(tmp_path):
        assert replay(file).equal
    assert replay(tmp_path).steps == sum(replay(file).steps for file in files_of(tmp_path))


def test_an_engine_that_is_started_again_keeps_the_record_before(tmp_path: Path) -> None:
    """In a container it may have the number of the one before, and so its file's name."""
    path = tmp_path / "e.jsonl"
    recorded(path, steps=5)
    before = path.read_bytes()
    recorded(path, steps=7)
    assert (tmp_path / "e.jsonl.1").read_bytes() == before
    assert (replay(path).steps, replay(tmp_path).steps) == (7, 12)


def test_a_plan_that_differs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    recorded(path)
    lines = path.read_text().splitlines(keepends=True)
    lines[7] = lines[7].replace('"chunk_tokens":100', '"chunk_tokens":99')
    path.write_text("".join(lines))
    replayed = replay(path)
    assert (replayed.steps, replayed.differing, replayed.equal) == (20, 1, False)
    assert replayed.first is not None
    assert (replayed.first.line, replayed.first.recorded.chunk_tokens) == (8, 99)


def test_a_last_line_that_is_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    recorded(path)
    path.write_bytes(path.read_bytes()[:-10])
    replayed = replay(path)
    assert (replayed.steps, replayed.equal, replayed.cut) == (19, True, (path,))


def test_a_state_that_does_not_follow_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    recorder = Recorder(path, lambda text: None)
    for at in (0, 50):
        state = ServeState(step=at)
        plan, after = plan_step(view(at), state, CONFIG, float(at))
        recorder.step(CONFIG, state, view(at), float(at), plan, after)
    recorder.close()
    assert [type(row).__name__ for _, row in read(path)] == ["Begin", "Step", "Begin", "Step"]
    assert replay(path).equal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json\n", "e.jsonl:1: not a recorded decision"),
        ('{"kind": "other"}\n', "e.jsonl:1: not a recorded decision"),
        (None, "e.jsonl:1: a step before any state"),
    ],
)
def test_a_file_that_is_no_record_is_refused_with_its_line(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "e.jsonl"
    recorded(path, 2)
    path.write_text(text if text is not None else path.read_text().split("\n", 1)[1])
    with pytest.raises(RecordError) as refused:
        replay(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nothing_to_replay_is_not_equal(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no file"):
        replay(tmp_path)
    with pytest.raises(RecordError, match="No such file"):
        replay(tmp_path / "none")
    (tmp_path / "e.jsonl").write_bytes(b"")
    assert not replay(tmp_path).equal


def test_a_folder_that_cannot_be_written_ends_the_record_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (warning,) = recorded(tmp_path / "file" / "e.jsonl")
    assert "cannot be written" in warning


def test_a_record_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    recorded(path, 1)
    begin = msgspec.json.decode(path.read_text().splitlines()[0])
    path.write_bytes(msgspec.json.encode({**begin, "format": 99}) + b"\n")
    with pytest.raises(RecordError, match="format 99"):
        replay(path)
