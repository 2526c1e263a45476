"""The policy changes between two steps, by an operator or by the controller, and no request is lost by it."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from mfsd.policy.serve import Policy, ServeConfig, StepLoad
from mfsd.policy.serve.meta import MetaState, Strategy
from mfsd.policy.serve.meta.guard import Watch
from mfsd.serve.controller import Controller
from mfsd.serve.endpoint import ask_endpoint
from mfsd.serve.engine import Engine
from mfsd.serve.promise import Words
from mfsd.serve.publish import AUTO, Publisher, want
from mfsd.serve.records import replay
from mfsd.serve.requests import Fact
from mfsd.serve.settings import Meta, Record, Settings, SettingsError, read_tables

STEP_TOKENS = 64


class Served:
    """An engine with requests that it serves to their ends, a step of 0.1 s each."""

    def __init__(self, record: Path, policy: Policy = Policy.FIT) -> None:
        self.now_s = 10.0
        self.warnings: list[str] = []
        config = ServeConfig(policy=policy, step_tokens=STEP_TOKENS, requests_max=8)
        settings = Settings(serve=config, record=Record(folder=str(record)))
        self.engine = Engine(settings, config, self.warn, "e", lambda: self.now_s)
        self.left: dict[str, list[int]] = {}
        """Prompt tokens computed and in all, output tokens made and wanted."""
        self.ended: list[str] = []

    def warn(self, kind: str, text: str) -> None:
        self.warnings.append(text)

    def arrive(self, name: str, prompt: int, outputs: int, **words: object) -> None:
        self.engine.arrived(name, Words(**words), 0.0, prompt, outputs)
        self.left[name] = [0, prompt, 0, outputs]

    def step(self) -> None:
        waiting = [Fact(name, 0) for name, (done, *_) in self.left.items() if done == 0]
        running = [
            Fact(name, min(done, prompt) + made, 0, made) for name, (done, prompt, made, _) in self.left.items() if done
        ]
        decision = self.engine.plan(waiting, running)
        assert decision is not None, self.warnings
        key = object()
        names = tuple(decision.tokens)
        self.engine.step_began(decision.plan.load if names else StepLoad(), names, key)
        self.now_s += 0.1
        self.engine.step_ended(key)
        for name, tokens in decision.tokens.items():
            row = self.left[name]
            if row[0] < row[1]:
                row[0] += tokens
                made = row[0] >= row[1]
            else:
                made = True
            if made:
                row[2] += 1
                self.engine.produced(name, 1)
            if row[2] >= row[3]:
                del self.left[name]
                self.ended.append(name)
                self.engine.ended(name)


def test_every_switch_of_policy_keeps_every_request_and_records_replay(tmp_path: Path) -> None:
    served = Served(tmp_path)
    for number in range(24):
        tenant = "ab"[number % 2]
        served.arrive(f"r{number}", 20 + 13 * (number % 7), 1 + number % 5, ttft_ms=500 + 100 * number, tenant=tenant)
    switches = 0
    while served.left:
        served.engine.use(msgspec.structs.replace(served.engine.base, policy=tuple(Policy)[switches % len(Policy)]))
        served.step()
        switches += 1
        assert switches < 1000
    served.engine.close()
    assert sorted(served.ended) == sorted(f"r{n}" for n in range(24))
    assert switches > len(Policy), "each has ruled"
    assert not served.engine.counts["failed_plans"]
    found = replay(tmp_path)
    assert found.equal and found.steps == switches


def test_an_operator_chooses_and_gives_back(tmp_path: Path) -> None:
    served, folder = Served(tmp_path / "record"), tmp_path / "status"
    publisher = Publisher(served.engine, served.warn, folder)

    def second() -> Policy:
        served.now_s += 1.0
        publisher.tick()
        return served.engine.config.policy

    assert want([tmp_path, folder], "e", "srpf") and second() is Policy.SRPF
    assert second() is Policy.SRPF
    assert want([folder], "e", "lifo") and second() is Policy.SRPF
    assert "lifo" in served.warnings[0]
    assert want([folder], "e", AUTO) and second() is Policy.FIT
    assert not want([folder], "other", "srpf")
    assert want([folder], "e", "edf")
    publisher.close()
    assert list(folder.iterdir()) == [], "nothing is left for an engine that comes later"


def test_what_another_user_has_put_into_its_folder_is_neither_written_nor_given_away(tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine", tmp_path / "status"
    mine.write_text("mine")
    folder.mkdir()
    (folder / "e.json").write_text("{}")
    for name in ("e.policy", "e.wanted", "e.partial"):
        os.link(mine, folder / name)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    assert want([folder], "e", "edf")
    assert (folder / "e.policy").read_text() == "edf" and mine.read_text() == "mine"
    assert mine.stat().st_uid == os.geteuid() and (folder / "e.policy").stat().st_uid == folder.stat().st_uid


# -- the controller

SHORT = {"ttft_ms": 300, "tenant": "t", "application": "chat"}


def overloaded(served: Served, controller: Controller, until_s: float) -> None:
    """Long prompts and short ones with tight deadlines."""
    number = 0
    while served.now_s < until_s:
        if number % 4 == 0:
            served.arrive(f"long{number}", 400, 2, ttft_ms=20_000, tenant="t", application="batch")
        served.arrive(f"short{number}", 20, 2, **SHORT)
        number += 1
        for _ in range(3):
            served.step()
        controller.tick()


def test_the_controller_changes_the_policy_and_no_request_is_lost(tmp_path: Path) -> None:
    served = Served(tmp_path, Policy.FCFS)
    config = Meta(enabled=True, pool=(Policy.FCFS, Policy.SRPF), requests_min=5, every_s=5.0, bypass_share=1.0)
    controller = Controller(served.engine, config, served.warn)
    overloaded(served, controller, 60.0)
    assert served.engine.config.policy is Policy.SRPF
    seen = len(served.ended) + len(served.left)
    while served.left:
        served.step()
    assert len(set(served.ended)) == len(served.ended) == seen
    served.engine.close()
    assert replay(tmp_path).equal


def test_a_controller_rests_while_an_operator_has_chosen(tmp_path: Path) -> None:
    served, folder = Served(tmp_path / "record"), tmp_path / "status"
    controller = Controller(served.engine, Meta(enabled=True, pool=(Policy.SRPF,)), served.warn)
    publisher = Publisher(served.engine, served.warn, folder, controller)
    for wanted, holds in ((None, Policy.SRPF), ("edf", Policy.EDF), (None, Policy.EDF), (AUTO, Policy.SRPF)):
        if wanted:
            assert want([folder], "e", wanted)
        for _ in range(2):
            served.now_s += 1.0
            publisher.tick()
        assert served.engine.config.policy is holds


def test_a_switch_from_before_an_operators_choice_is_not_taken_back_after_it(tmp_path: Path) -> None:
    """What got worse meanwhile was not its doing."""
    served = Served(tmp_path, Policy.FCFS)
    config = Meta(enabled=True, pool=(Policy.FCFS, Policy.SRPF), requests_min=5, every_s=5.0, bypass_share=1.0)
    controller = Controller(served.engine, config, served.warn)
    switched = MetaState(policy=Policy.SRPF, decided_s=served.now_s, watch=Watch(Policy.FCFS, 30.0, 0.0, 0.001))
    controller._state = switched
    controller.rest(True)
    overloaded(served, controller, 60.0)
    controller.rest(False)
    controller.tick()
    assert controller.latest is not None and "made it worse" not in controller.latest.reason
    controller._state = switched
    controller.tick()
    assert "made it worse" in controller.latest.reason, "it would have been"


def test_a_request_that_says_its_output_is_known_before_any_of_its_application_has_ended(tmp_path: Path) -> None:
    served = Served(tmp_path)
    controller = Controller(served.engine, Meta(enabled=True, requests_min=1), served.warn)
    shares = []
    for name, tokens in (("says", 5), ("silent", None), ("wrong", "many")):
        served.arrive(name, 8, 5, application="ide", expected_output_tokens=tokens)
        controller.tick()
        shares.append(controller._views(served.now_s).long.unknown_share)
    assert shares == [0.0, pytest.approx(1 / 2), pytest.approx(2 / 3)]


class Model(http.server.BaseHTTPRequestHandler):
    reply: ClassVar[bytes] = b""
    every_s: ClassVar[float] = 0.0
    """Between two bytes of its head and of its body."""
    keys: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.keys.append(self.headers["Authorization"])
        answer = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(self.reply), self.reply)
        parts = [answer[n : n + 1] for n in range(len(answer))] if self.every_s else [answer]
        with contextlib.suppress(OSError):  # the other side has left
            for part in parts:
                self.wfile.write(part)
                time.sleep(self.every_s)

    def log_message(self, format: str, *args: object) -> None:
        pass


def reply(content: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Model, "keys", [])
    server = http.server.HTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    server.shutdown()
    thread.join()
    server.server_close()


def answered() -> None:
    for thread in threading.enumerate():
        if thread.name == "mfs-meta":
            thread.join()


def asking(endpoint: str, **more: Any) -> Meta:
    given = {"strategy": Strategy.LLM, "pool": (Policy.EDF, Policy.SRPF), "every_s": 30, "timeout_s": 10, **more}
    return Meta(enabled=True, endpoint=endpoint, **given)


@pytest.mark.parametrize(
    ("answer", "holds"),
    [
        (reply('{"policy": "srpf"}'), Policy.SRPF),
        (reply('{"policy": "lottery"}'), Policy.EDF),
        (reply("I would use srpf"), Policy.EDF),
        (b'{"choices": []}', Policy.EDF),
        (b"<html>", Policy.EDF),
    ],
)
def test_a_models_answer_counts_only_in_its_strict_form(
    endpoint: str, answer: bytes, holds: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "reply", answer)
    served = Served(tmp_path)
    controller = Controller(served.engine, asking(endpoint), served.warn)
    for seconds, questions in ((0, 0), (19, 0), (2, 1), (5, 1), (5, 1)):
        served.now_s += seconds
        controller.tick()
        answered()
        assert len(Model.keys) == questions, "one for the decision at 30 s, ten seconds before it"
    assert served.engine.config.policy is holds
    assert bool(served.warnings) == (holds is Policy.EDF)


@pytest.mark.parametrize(("took_s", "holds"), [(9.0, Policy.SRPF), (11.0, Policy.EDF)])
def test_a_late_answer_never_decides(took_s: float, holds: Policy, tmp_path: Path) -> None:
    """Not the decision that it was asked for, and not the one after that either."""
    served = Served(tmp_path)
    questions: list[str] = []

    def ask(config: Meta, text: str) -> bytes:
        questions.append(text)
        if len(questions) > 1:
            raise TimeoutError
        served.now_s += took_s
        return b'{"policy": "srpf"}'

    controller = Controller(served.engine, asking("http://x"), served.warn, ask)
    controller.tick()
    served.now_s += 20.0
    controller.tick()
    answered()
    for _ in range(45):
        served.now_s += 1.0
        controller.tick()
        answered()
    assert served.engine.config.policy is holds
    assert any("late" in text for text in served.warnings) == (holds is Policy.EDF)


def test_an_answer_does_not_wait_for_a_decision_that_is_put_off(tmp_path: Path) -> None:
    """It was about another load: there is another question by then."""
    served = Served(tmp_path)
    given = [b'{"policy": "srpf"}', b"none"]
    controller = Controller(served.engine, asking("http://x"), served.warn, lambda config, text: given.pop(0))
    controller.tick()
    served.now_s += 20.0
    controller.tick()
    answered()
    served.now_s += 60.0
    controller.tick()
    answered()
    assert served.engine.config.policy is Policy.EDF and not given


def test_an_endpoint_that_drips_is_cut_at_the_deadline(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes within the limit of a read."""
    monkeypatch.setattr(Model, "reply", reply('{"policy": "srpf"}'))
    monkeypatch.setattr(Model, "every_s", 0.05)
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no whole answer within 0\.5 s"):
        ask_endpoint(asking(endpoint, timeout_s=0.5), "which?")
    assert time.monotonic() - began_s < 3.0, "the whole answer takes seven"


def test_a_key_is_read_at_each_question(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "reply", reply("x"))
    file = tmp_path / "key"
    config = asking(endpoint, api_key_file=str(file))
    for key in ("one", "two"):
        file.write_text(key + "\n")
        assert ask_endpoint(config, "which?") == b"x"
    ask_endpoint(asking(endpoint), "which?")
    assert Model.keys == ["Bearer one", "Bearer two", None]
    for unusable in ("", "one\ntwo", "sch\u00f6n"):
        file.write_text(unusable)
        with pytest.raises(ValueError, match=rf"{file}: holds no key of printable ASCII characters$"):
            ask_endpoint(config, "which?")
    file.unlink()
    with pytest.raises(FileNotFoundError):
        ask_endpoint(config, "which?")
    assert len(Model.keys) == 3


def test_a_silent_endpoint_leaves_the_rules(tmp_path: Path) -> None:
    served = Served(tmp_path)
    config = Meta(enabled=True, strategy=Strategy.LLM, pool=(Policy.EDF,), endpoint="http://x")

    def ask(config: Meta, text: str) -> bytes:
        raise TimeoutError("timed out")

    controller = Controller(served.engine, config, served.warn, ask)
    for _ in range(40):
        controller.tick()
        served.now_s += 1.0
    assert served.engine.config.policy is Policy.EDF
    assert "timed out" in served.warnings[0] and "rules" in served.warnings[0]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"meta": {"strategy": "llm"}}, "endpoint is '': use the http:// or https:// URL"),
        ({"meta": {"timeout_s": 0}}, "timeout_s is 0"),
        ({"meta": {"pool": ["lifo"]}}, "lifo"),
        ({"meta": {"every_s": -1}}, "every_s is -1"),
    ],
)
def test_a_wrong_table_is_named(tables: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_tables(tables, "here")
