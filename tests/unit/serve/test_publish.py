"""What an engine publishes is what mfsctl shows, without any daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from mfsd.cli.ctl import main
from mfsd.policy.serve import Policy, ServeConfig, StepLoad
from mfsd.policy.serve.fetch import Choice, Decision, Reason
from mfsd.serve.engine import Engine
from mfsd.serve.metrics import COUNTERS, GAUGES, HISTOGRAMS, REUSE_REASONS, Metrics, reuse_counter
from mfsd.serve.promise import Words
from mfsd.serve.publish import EVERY_S, Publisher, read_all
from mfsd.serve.requests import Fact
from mfsd.serve.settings import Settings, Tier
from mfsd.serve.status import EngineStatus, status_of
from mfsd.serve.status_files import FOLDER_VARIABLE, own_folder
from mfsd.serve.tier_reader import FILES_MAX

SETTINGS = Settings(tiers={"chat": Tier(ttft_ms=500, importance=1)})


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


def served(clock: Clock) -> Engine:
    """One request of the tier chat that was in time, and two that are here."""
    engine = Engine(SETTINGS, ServeConfig(step_tokens=100), lambda kind, text: None, "vllm-1-0", clock)
    for name, words in (("done", Words(tier="chat")), ("cmpl-1", Words(tier="chat", session="s", role="planner"))):
        engine.arrived(name, words, 0.0, 80, 64)
    engine.arrived("cmpl-2", Words(tier="nope"), 0.0, 90, 64)
    engine.produced("done", 3)
    engine.ended("done")
    engine.plan([Fact("cmpl-1", 0), Fact("cmpl-2", 0)], [])
    key = object()
    engine.step_began(StepLoad(80, 80), ("cmpl-1",), key)
    clock.now_s += 0.1
    engine.step_ended(key)
    return engine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "status"))
    return tmp_path / "status"


def ctl(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_status_is_a_private_file_that_goes_with_the_engine(folder: Path) -> None:
    clock = Clock()
    publisher = Publisher(served(clock), lambda kind, text: None)
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    ((status,), complaints) = read_all([folder])
    assert not complaints
    assert (status.engine, status.pid, status.waiting, status.running) == ("vllm-1-0", os.getpid(), 1, 1)
    publisher.close()
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes namespaces of process numbers")
def test_engines_of_two_containers_do_not_write_the_same_file(folder: Path) -> None:
    """Each is the first process of its container, as engines of one image have the same number in all pods."""
    program = (
        "import os; from mfsd.serve.engine import Engine; from mfsd.serve.publish import Publisher\n"
        "from mfsd.policy.serve import ServeConfig; from mfsd.serve.settings import Settings\n"
        "from mfsd.serve.status_files import process_name\n"
        "engine = Engine(Settings(), ServeConfig(), lambda kind, text: None, f'vllm-{process_name()}-0')\n"
        "Publisher(engine, lambda kind, text: None); print(os.getpid(), flush=True); input()"
    )
    command = ("unshare", "--fork", "--pid", "--mount-proc", sys.executable, "-c", program)
    pods = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [pod.stdout.readline() for pod in pods if pod.stdout] == ["1\n", "1\n"]
    engines, complaints = read_all([folder])
    assert len({engine.engine for engine in engines}) == len({engine.pid_namespace for engine in engines}) == 2
    assert [engine.pid for engine in engines] == [1, 1] and not complaints
    for pod in pods:
        pod.communicate("\n", timeout=100)
        assert pod.returncode == 0


def test_it_is_written_once_a_second(folder: Path) -> None:
    clock = Clock()
    publisher = Publisher(served(clock), lambda kind, text: None)
    (path,) = folder.iterdir()
    before = path.stat().st_ino
    publisher.tick()
    assert path.stat().st_ino == before
    clock.now_s += EVERY_S
    publisher.tick()
    publisher.settled()
    assert path.stat().st_ino != before
    publisher.close()


def test_a_step_does_not_wait_for_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status takes for ever, as on a disk that hangs: steps go on, one thread waits, and it is what writes then."""
    clock, hangs, made = Clock(), threading.Event(), list[str]()

    def slow(*arguments: Any) -> EngineStatus:
        made.append(threading.current_thread().name)
        assert hangs.wait(60)
        return status_of(*arguments)

    publisher = Publisher(served(clock), lambda kind, text: None)
    (path,) = folder.iterdir()
    before = path.stat().st_ino
    monkeypatch.setattr("mfsd.serve.publish.status_of", slow)
    begun_s = time.monotonic()
    for _ in range(3):
        clock.now_s += EVERY_S
        publisher.tick()
    assert time.monotonic() - begun_s < 30
    assert path.stat().st_ino == before
    hangs.set()
    publisher.settled()
    assert made == ["mfs-serve-status"] and path.stat().st_ino != before
    publisher.close()
    assert list(folder.iterdir()) == []


def test_a_status_that_cannot_be_made_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, warnings = Clock(), list[str]()
    publisher = Publisher(served(clock), lambda kind, text: warnings.append(text))
    (path,) = folder.iterdir()
    before = path.stat().st_ino
    with monkeypatch.context() as patched:
        patched.setattr("mfsd.serve.publish.status_of", lambda *arguments: 1 // 0)
        clock.now_s += EVERY_S
        publisher.tick()
        publisher.settled()
    assert "could not be made" in warnings[0] and path.stat().st_ino == before
    clock.now_s += EVERY_S
    publisher.tick()
    publisher.close()
    assert len(warnings) == 1


def test_the_status_is_made_beside_an_engine_whose_requests_come_and_go(folder: Path) -> None:
    engine, stop = served(Clock()), threading.Event()

    def arrive() -> None:
        number = 0
        while not stop.is_set():
            engine.arrived(str(number), Words(tier="chat", session=str(number % 7)), 0.0, 10, 10)
            engine.ended(str(number - 300))
            number += 1

    thread, usual_s = threading.Thread(target=arrive), sys.getswitchinterval()
    thread.start()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(50):
            assert status_of(engine, 1, 0.0).waiting >= 0
    finally:
        sys.setswitchinterval(usual_s)
        stop.set()
        thread.join()


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    warnings: list[str] = []
    clock = Clock()
    publisher = Publisher(served(clock), lambda kind, text: warnings.append(text), tmp_path / "file")
    clock.now_s += EVERY_S
    publisher.tick()
    (warning,) = warnings
    assert str(tmp_path / "file") in warning


def test_a_status_that_could_not_be_written_is_gone_until_it_can_be_again(folder: Path) -> None:
    """As on a disk that is full for a while: what was written before says nothing of now, nor does it take a policy."""
    clock, warnings = Clock(), list[str]()
    engine = served(clock)
    publisher = Publisher(engine, lambda kind, text: warnings.append(text))
    (folder / "vllm-1-0.partial").mkdir()
    for _ in range(2):
        clock.now_s += EVERY_S
        publisher.tick()
        publisher.settled()
        assert read_all([folder]) == ([], [])
    (folder / "vllm-1-0.partial").rmdir()
    clock.now_s += EVERY_S
    publisher.tick()
    publisher.settled()
    assert len(read_all([folder])[0]) == len(warnings) == 1
    ctl("policy", "edf")
    clock.now_s += EVERY_S
    publisher.tick()
    assert engine.config.policy is Policy.EDF
    publisher.close()


def test_an_engine_removes_what_those_that_were_killed_left(folder: Path) -> None:
    """As of an engine that is killed at each start: the daemon reads no more than so many files of a folder."""
    publisher = Publisher(served(Clock()), lambda kind, text: None)
    (path,) = folder.iterdir()
    here = json.loads(path.read_text())
    publisher.close()
    gone = 2**22 + 1
    for at in range(FILES_MAX):
        (folder / f"killed-{at}.json").write_text(json.dumps(here | {"pid": gone}))
    (folder / "killed-0.partial").write_text("{")
    (folder / "lives.json").write_text(json.dumps(here))
    (folder / "elsewhere.json").write_text(json.dumps(here | {"pid": gone, "pid_namespace": 1}))
    (folder / "other.json").write_text('{"tiers":' + "[" * 100_000)
    publisher = Publisher(served(Clock()), lambda kind, text: None)
    names = ["elsewhere.json", "lives.json", "other.json", "vllm-1-0.json"]
    assert sorted(left.name for left in folder.iterdir()) == names
    publisher.close()


def test_files_of_dead_engines_links_and_nonsense_are_left_out(folder: Path) -> None:
    publisher = Publisher(served(Clock()), lambda kind, text: None)
    (path,) = folder.iterdir()
    dead = json.loads(path.read_text()) | {"pid": 2**22 + 1, "engine": "dead"}
    (folder / "dead.json").write_text(json.dumps(dead))
    (folder / "other.json").write_text("{")
    (folder / "later.json").write_text(json.dumps(dead | {"format": 99}))
    (folder / "link.json").symlink_to(path)
    os.mkfifo(folder / "pipe.json")
    engines, complaints = read_all([folder])
    assert [engine.engine for engine in engines] == ["vllm-1-0"]
    assert sorted(Path(line.split(":")[0]).name for line in complaints) == [
        "later.json",
        "link.json",
        "other.json",
        "pipe.json",
    ]
    publisher.close()


def test_an_engine_whose_number_is_another_process_by_now_is_left_out(folder: Path) -> None:
    publisher = Publisher(served(Clock()), lambda kind, text: None)
    (path,) = folder.iterdir()
    os.utime(path, (time.time() - 86_400,) * 2)  # this process is younger than the file
    assert read_all([folder]) == ([], [])
    publisher.close()


def test_mfsctl_shows_it_as_tables_and_as_json(folder: Path) -> None:
    publisher = Publisher(served(Clock()), lambda kind, text: None)
    table = ctl("status")
    assert "vllm-1-0  fit     serving" in table
    assert "100 %" in table.replace("100%", "100 %")
    assert "could not use tier 1" in table
    assert json.loads(ctl("status", "--json"))[0]["tiers"]["chat"]["met"] == 1
    assert "s " in ctl("programs")
    assert json.loads(ctl("programs", "--json"))["vllm-1-0"][0]["program"] == "s"
    assert "step_tokens" in ctl("policy")
    assert json.loads(ctl("policy", "--json"))["vllm-1-0"]["step_tokens"] == 100
    explained = ctl("explain", "cmpl-1")
    assert "cmpl-1 in vllm-1-0: computing" in explained
    assert "role planner" in explained
    assert json.loads(ctl("explain", "cmpl-2", "--json"))["tier"] == "default"
    publisher.close()


def test_mfsctl_says_what_is_missing(folder: Path) -> None:
    assert "no engine publishes" in ctl("status", code=3)
    publisher = Publisher(served(Clock()), lambda kind, text: None)
    assert "no engine has it now" in ctl("explain", "chatcmpl", code=1)
    assert "2 requests begin with this" in ctl("explain", "cmpl", code=1)
    publisher.close()


def test_where_engines_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert own_folder() == Path("/run/user/7/mfs-serve")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert own_folder() == Path(f"/tmp/mfs-serve-{os.geteuid()}")


def test_a_preempted_request_waits_again() -> None:
    clock = Clock()
    engine = served(clock)

    def shown() -> tuple[int, int, int, int]:
        status = status_of(engine, 1, 0.0)
        tier, (program,) = status.tiers["chat"], status.programs
        return status.running, tier.running, status.waiting, program.waiting

    assert shown() == (1, 1, 1, 0), "cmpl-1, which the step computes"
    engine.plan([Fact("cmpl-2", 0)], [Fact("cmpl-1", 80, 0, 1)])
    assert shown() == (1, 1, 1, 0)
    engine.plan([Fact("cmpl-1", 0, 0, 1, again_tokens=81), Fact("cmpl-2", 0)], [])
    assert shown() == (0, 0, 2, 1)
    engine.first_come()
    engine.step_began(StepLoad(90, 90), ("cmpl-2",), object())
    assert shown() == (1, 0, 1, 1)


def test_metrics_are_the_engines_own_totals() -> None:
    clock, registry = Clock(), CollectorRegistry()
    engine = served(clock)
    metrics = Metrics(engine, registry)
    metrics.update()
    metrics.update()
    text = generate_latest(registry).decode()
    assert 'mfs_serve_requests_total{engine="0",outcome="met",tier="chat"} 1.0' in text
    assert 'mfs_serve_attainment_ratio{engine="0",tier="chat"} 1.0' in text
    assert 'mfs_serve_tokens_total{engine="0",tier="chat"} 3.0' in text
    assert 'mfs_serve_queue{engine="0",policy="fit",state="computing"} 2.0' in text
    assert 'mfs_serve_queue{engine="0",policy="fit",state="waiting"} 0.0' in text
    assert 'mfs_serve_unusable_words_total{engine="0",word="tier"} 1.0' in text
    assert 'mfs_serve_step_tokens_total{engine="0",kind="prefill"} 80.0' in text
    for name in (*COUNTERS, *GAUGES, *HISTOGRAMS):
        assert f"# TYPE {name}" in text
    Metrics(engine, registry).update()


def test_every_step_that_computes_prompts_is_in_the_histogram_of_chunks_once() -> None:
    registry = CollectorRegistry()
    engine = served(Clock())  # one step of 80 prompt tokens
    metrics = Metrics(engine, registry)
    for prefill, decodes in ((16, 0), (17, 3), (0, 5), (80, 0), (40_000, 0)):
        engine.step_began(StepLoad(prefill, prefill, decodes), (), object())
    metrics.update()
    metrics.update()
    name = "mfs_serve_computed_chunk_tokens"
    below = {
        at: registry.get_sample_value(f"{name}_bucket", {"engine": "0", "le": at})
        for at in ("16.0", "32.0", "64.0", "128.0", "16384.0", "+Inf")
    }
    assert below == {"16.0": 1, "32.0": 2, "64.0": 2, "128.0": 4, "16384.0": 4, "+Inf": 5}
    assert registry.get_sample_value(f"{name}_sum", {"engine": "0"}) == 80 + 16 + 17 + 80 + 40_000


def test_requests_are_queued_under_the_policy_of_now_alone() -> None:
    registry = CollectorRegistry()
    engine = served(Clock())
    metrics = Metrics(engine, registry)
    metrics.update()
    engine.use(msgspec.structs.replace(engine.config, policy=Policy.FCFS))
    metrics.update()

    def queued(policy: str) -> float | None:
        labels = {"engine": "0", "policy": policy, "state": "computing"}
        return registry.get_sample_value("mfs_serve_queue", labels)

    assert (queued("fit"), queued("fcfs")) == (0.0, 2.0)
    engine.use(msgspec.structs.replace(engine.config, policy=Policy.FIT))
    metrics.update()
    assert (queued("fit"), queued("fcfs")) == (2.0, 0.0)


def test_decisions_on_reuse_are_counted_where_they_are_made_and_shown_with_the_engine(folder: Path) -> None:
    registry = CollectorRegistry()
    count = reuse_counter("0", registry)
    for decision in (
        Decision(Choice.FETCH, Reason.IN_TIME),
        Decision(Choice.RECOMPUTE, Reason.LATE_WITH_IT),
        Decision(Choice.FETCH, Reason.BACKLOG_UNKNOWN),
        Decision(Choice.FETCH, Reason.IN_TIME),
    ):
        count(decision)
    text = generate_latest(registry).decode()
    for choice, reason, number in (
        *(("fetch", "in_time", 2), ("fetch", "backlog_unknown", 1), ("fetch", "late_either_way", 0)),
        *(("recompute", "late_with_it", 1), ("part", "late_with_it", 0)),
    ):
        labels = f'decision="{choice}",engine="0",reason="{reason}"'
        assert f"mfs_serve_reuse_decisions_total{{{labels}}} {number}.0" in text
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    assert [r.label for reasons in REUSE_REASONS.values() for r in reasons if f"`{r.label}`" not in page] == []
    assert 'decision="wait"' not in text and "engine_busy" not in text, "a live engine never waits"
    engine = served(Clock())
    publisher = Publisher(engine, lambda kind, text: None)
    assert "reuse" not in ctl("status")
    publisher.close()
    engine.reuse_counts = lambda: {"fetch": 2, "recompute": 1}
    publisher = Publisher(engine, lambda kind, text: None)
    assert "vllm-1-0: decisions about reuse that a store has: 2 fetch, 1 recompute" in ctl("status")
    publisher.close()
