"""Learning from recorded requests: what a model predicts, which files and rows are refused, and the command."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mfsd.cli.ctl import main
from mfsd.serve.learn import model as models
from mfsd.serve.learn import trees
from mfsd.serve.learn.features import FEATURES, CallInfo, Sessions, calls_of, vector
from mfsd.serve.learn.model import Model, ModelError, Predictor, calibrated, read, write
from mfsd.serve.learn.prior import UNKNOWN_TOKENS, Prior
from mfsd.serve.learn.rows import RequestRow, RowsError, checked, read_rows

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

SESSIONS, CALLS = 160, 8


def recorded(seed: int = 1) -> list[RequestRow]:
    """Generated: planners call a tool until their last call and answer shortly with one; writers never do."""
    chance = random.Random(seed)
    rows = []
    for session in range(SESSIONS):
        for place in range(CALLS):
            role = "planner" if place % 2 == 0 else "writer"
            tool = role == "planner" and place < CALLS - 2 and chance.random() < 0.9
            mean = 60 if tool else 900 if role == "writer" else 400
            rows.append(
                RequestRow(
                    session_id=session,
                    timestamp=float(place),
                    input_length=400 + 300 * place,
                    output_length=max(1, round(chance.lognormvariate(0, 0.3) * mean)),
                    role=role,
                    tools=3 if role == "planner" else 0,
                    after_tool=place % 2 == 1,
                    tool_call=tool,
                )
            )
    return rows


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, object]]:
    """Requests, the model file, and the report that the command prints."""
    folder = tmp_path_factory.mktemp("learn")
    requests, out = folder / "requests.jsonl", folder / "lengths.model"
    requests.write_bytes(b"\n".join(msgspec.json.encode(row) for row in recorded()) + b"\n")
    result = CliRunner().invoke(main, ["learn", "--requests", str(requests), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert "1280 requests" in result.stderr and "lengths" in result.stderr
    return requests, out, json.loads(result.stdout)


def test_the_report_tells_tool_use_lengths_and_bounds(learned: tuple[Path, Path, dict[str, object]]) -> None:
    _, out, report = learned
    assert report["learned_from"] == SESSIONS * CALLS and report["model"] == str(out)
    assert float(report["auc"]) > 0.85 and float(report["r2"]) > 0.4  # type: ignore[arg-type]
    for row in report["coverage"][:2]:  # type: ignore[index]
        assert row["covered"] == pytest.approx(1 - row["epsilon"], abs=0.05)


def test_it_predicts_what_structure_says(learned: tuple[Path, Path, dict[str, object]]) -> None:
    predictor = Predictor(read(learned[1]))
    tool = CallInfo("planner", position=2, invocation=1, tools=3, prompt_tokens=1000, new_tokens=540, after_tool=False)
    text = CallInfo("writer", position=3, invocation=1, tools=0, prompt_tokens=1300, new_tokens=100, after_tool=True)
    assert predictor.predict(tool).tool_probability > 0.7 and predictor.predict(text).tool_probability == 0.0
    assert predictor.predict(tool).output_tokens < 200 < predictor.predict(text).output_tokens
    assert predictor.predict_all([tool, text]) == [predictor.predict(tool), predictor.predict(text)]
    limit = 1e9
    assert predictor.predict(tool).output_tokens < predictor.bounds(0.1).bound(1000, 60, limit) < limit


def test_one_call_has_the_score_that_it_has_among_many(
    learned: tuple[Path, Path, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where LightGBM's Python has no such call."""
    chance, model = random.Random(7), read(learned[1])
    calls = [
        CallInfo(
            role=chance.choice(("planner", "writer", "unknown", "")),
            position=chance.randrange(20),
            invocation=chance.randrange(10),
            tools=chance.randrange(4),
            prompt_tokens=chance.randrange(5000),
            new_tokens=chance.randrange(5000),
            after_tool=chance.choice((None, True, False)),
            previous_tool_call=chance.choice((None, True, False)),
            previous_output_tokens=chance.choice((None, chance.randrange(2000))),
        )
        for _ in range(500)
    ]
    predictor = Predictor(model)
    together = predictor.predict_all(calls)
    assert len(set(together)) > 50 and [predictor.predict(call) for call in calls] == together
    monkeypatch.setattr(trees, "_library_of", lambda _: None)
    without = Predictor(model)
    assert [without.predict(call) for call in calls[:50]] == together[:50]


def test_trees_of_other_features_are_refused(learned: tuple[Path, Path, dict[str, object]]) -> None:
    model = read(learned[1])
    with pytest.raises(ModelError, match="they have 10 features, not 9; learn the model again"):
        Predictor(msgspec.structs.replace(model, intent=model.lengths[""]))


def test_the_same_rows_give_the_same_file(learned: tuple[Path, Path, dict[str, object]], tmp_path: Path) -> None:
    again = tmp_path / "again.model"
    result = CliRunner().invoke(main, ["learn", "--requests", str(learned[0]), "--out", str(again)])
    assert again.read_bytes() == learned[1].read_bytes()
    assert "AUC" in result.stdout and "R2" in result.stdout and "covers" in result.stdout


def test_prediction_needs_no_scikit_learn(learned: tuple[Path, Path, dict[str, object]]) -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'sklearn': raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from pathlib import Path\n"
        "from mfsd.serve.learn.model import Predictor, read\n"
        "from mfsd.serve.learn.features import CallInfo\n"
        f"print(Predictor(read(Path({str(learned[1])!r}))).predict(CallInfo('planner', tools=3)).output_tokens)\n"
        "assert 'sklearn' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


# Files that are refused


def damaged(file: Path, folder: Path, how: str) -> Path:
    head, _, body = file.read_bytes().partition(b"\n")
    header = json.loads(head)
    match how:
        case "foreign":
            return written(folder, b"\x89PNG\r\n\x1a\n" + bytes(100))
        case "other format":
            header["format"] = "something-else"
        case "version":
            header["version"] = 2
        case "features":
            header["features_hash"] = "0" * 16
        case "truncated":
            body = body[: len(body) // 2]
        case "changed":
            body = body.replace(b"tree", b"eert", 1)
    return written(folder, json.dumps(header).encode() + b"\n" + body)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "bad.model"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("foreign", "no model of output lengths"), ("other format", "format is 'something-else'"),
        ("version", "version 2 of the format"), ("features", "learned with other features"),
        ("truncated", "bytes; copy it again"), ("changed", "changed after it was written"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_in_one_line(
    how: str, says: str, learned: tuple[Path, Path, dict[str, object]], tmp_path: Path
) -> None:
    path = damaged(learned[1], tmp_path, how)
    with pytest.raises(ModelError, match=says) as refused:
        read(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_file_and_trees_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"No such file.*mfsctl learn"):
        read(tmp_path / "none")
    path = tmp_path / "trees.model"
    path.write_text("[" * 100_000)
    with pytest.raises(ModelError, match="no model of output lengths"):
        read(path)
    write(path, Model(roles=(), intent="", calibration=(), lengths={"": "no trees"}, errors=(), requests=1))
    with pytest.raises(ModelError, match="cannot read the trees"):
        Predictor(read(path))


def test_without_lightgbm_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    empty = Model(roles=(), intent="", calibration=(), lengths={}, errors=(), requests=0)
    with pytest.raises(ModelError, match=r"mfsd\[learn\]"):
        Predictor(empty)
    assert models.FORMAT


# Rows that are refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no requests"),
        ('{"session_id":1,"timestamp":0,"input_length":5}', ":1: .*output_length"),
        ('{"session_id":1,"timestamp":0,"input_length":5,"output_length":-1}', ":1: .*output_length is -1"),
        ('{"session_id":1,"timestamp":0,"input_length":5,"output_length":0}', "output_length is 0 here and in all"),
        ("{\n", ":1: "),
        ('{"x":' + "[" * 100_000, ":1: .*recursion"),
        ('{"session_id":1,"timestamp":1e12,"input_length":5,"output_length":3}', "timestamp is .*use 0 to 1e12"),
        (
            '{"session_id":1,"timestamp":9,"input_length":5,"output_length":3}\n'
            '{"session_id":2,"timestamp":0,"input_length":5,"output_length":3}\n'
            '{"session_id":1,"timestamp":8,"input_length":5,"output_length":3}',
            "request 3: timestamp 8 of session 1 comes after 9",
        ),
        ('{"session_id":1,"timestamp":0,"input_length":5,"output_length":7}', "1 requests leave"),
    ],
)
def test_rows_that_cannot_be_used_are_named(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    result = CliRunner().invoke(main, ["learn", "--requests", str(path), "--out", str(tmp_path / "m")])
    assert result.exit_code == 1 and not (tmp_path / "m").exists()
    assert len(result.stderr.strip().splitlines()) == 1
    assert re.search(says, result.stderr), result.stderr


def test_the_model_never_replaces_the_requests(tmp_path: Path) -> None:
    requests, link = tmp_path / "r.jsonl", tmp_path / "m"
    rows = [{"session_id": n, "timestamp": n, "input_length": 5, "output_length": 3 + n} for n in range(50)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    requests.write_text(text)
    link.symlink_to(requests)
    for out in (requests, link):
        result = CliRunner().invoke(main, ["learn", "--requests", str(requests), "--out", str(out)])
        assert result.exit_code == 1 and "would replace the file of --requests" in result.output
        assert requests.read_text() == text


def test_a_file_of_requests_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RowsError, match="none: No such file"):
        read_rows(tmp_path / "none")


# Features, calibration, prior


def test_features_know_only_what_came_before() -> None:
    rows = recorded()[:4]
    calls = calls_of(checked(rows, "rows"))
    assert [c.position for c in calls] == [0, 1, 2, 3] and [c.invocation for c in calls] == [0, 0, 1, 1]
    assert calls[0].previous_output_tokens is None and calls[2].previous_output_tokens == rows[0].output_length
    assert calls[2].new_tokens == max(0, rows[2].input_length - rows[0].input_length - rows[0].output_length)
    numbers = vector(calls[0]._replace(role="unknown"), ("planner", "writer"))
    assert len(numbers) == len(FEATURES) and numbers[0] != numbers[0], "a role that was not learned is missing"


def test_sessions_that_ended_a_call_the_longest_ago_are_forgotten() -> None:
    sessions = Sessions(most=2)
    rows = {name: RequestRow(session_id=name, timestamp=0, input_length=9, output_length=5) for name in "abc"}
    for name in "aabac":
        sessions.ended(rows[name])
    assert [sessions.call(rows[name]).position for name in "abc"] == [3, 0, 1]
    assert sessions.call(rows["b"]).previous_output_tokens is None
    for number in range(100):
        sessions.ended(msgspec.structs.replace(rows["a"], role=str(number)))
    assert sessions.call(rows["a"]).position == 103 and len(sessions) == 2


def test_calibration_is_linear_between_points_and_flat_beyond() -> None:
    points = ((0.2, 0.1), (0.4, 0.5), (0.4, 0.6), (0.8, 1.0))
    assert [calibrated(points, x) for x in (0.0, 0.3, 0.6, 0.9)] == pytest.approx([0.1, 0.3, 0.8, 1.0])
    assert calibrated((), 0.7) == 0.7


def test_the_prior_is_the_median_of_the_role_then_of_all() -> None:
    prior = Prior()
    assert prior.predict(CallInfo("a", tools=1)) == (0.5, UNKNOWN_TOKENS)
    for tokens in (10, 20, 90):
        prior.ended("a", tokens)
    assert prior.predict(CallInfo("a")) == (0.0, 20.0) and prior.predict(CallInfo("b"))[1] == 20.0
