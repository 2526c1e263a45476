"""From recorded requests to predicted lengths: a gateway records, mfsctl learns, and a gateway tells engines."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mfsd.serve.learn.rows import read_rows
from tests.support.gateway import ROOT, Front, GatewayProcess, gateway, replicas
from tests.support.openai_engine import MODEL, StandIn, engines
from tests.support.waiting import eventually

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

FAST = "[state]\npoll_ms = 50\n"
SESSIONS, CALLS = 60, 6
CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "f"}}]
LIMIT = 40


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    with engines(1) as (made,):
        yield made


def config(engine: StandIn, **predict: object) -> str:
    table = "".join(f"{key} = {json.dumps(str(value))}\n" for key, value in predict.items())
    return replicas(engine.url) + FAST + f"[predict]\n{table}"


def words(session: object, role: str) -> dict[str, str]:
    return {"x-session-id": f"session-{session}", "x-role": role}


def body(role: str, **more: object) -> dict[str, Any]:
    tools = {"tools": TOOLS} if role == "planner" else {}
    return {"model": MODEL, "messages": [{"role": "user", "content": "private words"}], **tools, **more}


def conversation(front: Front, session: int) -> None:
    """Planners call a tool with few tokens, writers write many; every second answer is a stream."""
    chance = random.Random(session)
    for place in range(CALLS):
        role = "planner" if place % 2 == 0 else "writer"
        mean = 60 if role == "planner" else 900
        tokens = round(chance.lognormvariate(0, 0.2) * mean)
        streams = {"stream": True, "max_tokens": 1, "stream_options": {"include_usage": True}} if session % 2 else {}
        asked = body(role, tokens=tokens, calls=role == "planner", **streams)
        assert front.post(asked, words(session, role), CHAT)[0] == 200


@pytest.fixture(scope="module")
def record(engine: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded by two gateways, one after the other."""
    folder = tmp_path_factory.mktemp("record")
    path = folder / "requests.jsonl"
    for half in (range(SESSIONS // 2), range(SESSIONS // 2, SESSIONS)):
        with gateway(folder, config(engine, record=path)) as front, ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda session, front=front: conversation(front, session), half)) == [None] * len(half)
    return path


@pytest.fixture(scope="module")
def model(record: Path) -> Path:
    out = record.with_name("lengths.model")
    command = (sys.executable, "-m", "mfsd.cli.ctl", "learn", "--requests", record, "--out", out)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


def test_each_request_is_a_row_without_its_text(record: Path) -> None:
    rows = read_rows(record)
    assert len(rows) == SESSIONS * CALLS and len({row.session_id for row in rows}) == SESSIONS
    assert {(row.role, row.tools) for row in rows} == {("planner", 1), ("writer", 0)}
    assert {row.tool_call for row in rows if row.role == "planner"} >= {True}
    assert not any(word in record.read_text() for word in ("private", "session-1", "a b"))


def expected(engine: StandIn, front: GatewayProcess, role: str, headers: dict[str, str], **more: object) -> object:
    assert front.post(body(role, user="predicted", tokens=100, **more), headers, CHAT)[0] == 200
    xargs = [one["body"].get("vllm_xargs", {}) for one in engine.seen() if one["body"].get("user") == "predicted"]
    return xargs[-1].get("expected_output_tokens")


def test_engines_are_told_what_the_model_expects(engine: StandIn, model: Path, tmp_path: Path) -> None:
    with gateway(tmp_path, config(engine, model=model)) as front:
        planner, writer = (expected(engine, front, role, words("new", role)) for role in ("planner", "writer"))
        assert isinstance(planner, float) and isinstance(writer, float) and 30 < planner < 120 < 500 < writer < 1500
        assert expected(engine, front, "writer", words("new", "writer"), max_tokens=LIMIT) == LIMIT
        named = {**words("new", "writer"), "x-expected-output-tokens": "7"}
        assert expected(engine, front, "writer", named) == 7
        found = dict(line.rsplit(" ", 1) for line in front.metrics().splitlines() if not line.startswith("#"))
        assert found['mfs_gateway_prediction_error_tokens_count{by="model"}'] == "3.0"


def test_a_model_that_cannot_be_used_stops_the_start(engine: StandIn, model: Path, tmp_path: Path) -> None:
    head, _, content = model.read_bytes().partition(b"\n")
    changed = tmp_path / "changed.model"
    changed.write_bytes(head + b"\n" + content.replace(b"tree", b"eert", 1))
    file = tmp_path / "gateway.toml"
    for path, problem in ((changed, "was changed after it was written"), (tmp_path / "none", "No such file")):
        file.write_text(config(engine, model=path))
        for more in ((), ("--check-config",)):
            done = refused(file, *more)
            assert (done.returncode, problem in done.stderr) == (2, True) and done.stderr.count("\n") == 1
    file.write_text(config(engine, model=model))
    done = refused(file, "--check-config", without="lightgbm")
    assert done.returncode == 2 and "pip install 'mfsd[learn]'" in done.stderr and done.stderr.count("\n") == 1


def refused(file: Path, *more: str, without: str = "none") -> subprocess.CompletedProcess[str]:
    """without: a package that the gateway does not find."""
    program = f"import sys; sys.modules[{without!r}] = None; from mfsd.cli.daemon import main; main()"
    command = (sys.executable, "-c", program, "--gateway", "--config", str(file), *more)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_record_that_cannot_be_written_harms_no_request(engine: StandIn, tmp_path: Path) -> None:
    with gateway(tmp_path, config(engine, record="/dev/full")) as front:
        for _ in range(2):
            assert front.post(body("writer", tokens=5), path=CHAT)[0] == 200
            eventually(lambda: "not-recorded" in front.log.read_text(), "the warning")
    assert front.log.read_text().count("not-recorded") == 1
    assert "/dev/full: No space left on device" in front.log.read_text()


def test_answers_that_tell_no_length_are_not_recorded(engine: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with gateway(tmp_path, config(engine, record=path)) as front:
        front.post(body("writer"), path=CHAT)
        front.post(body("writer", tokens=5, stream=True), path=CHAT)  # without stream_options
        front.post({"model": MODEL, "prompt": "x", "tokens": 5})
    assert [(row.output_length, row.tool_call) for row in read_rows(path)] == [(5, None)]
