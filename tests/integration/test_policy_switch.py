"""The policy of engines is switched by mfsctl while a gateway's requests run there: none is lost, repeated or cut."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mfsd.policy.serve import Policy
from mfsd.serve.publish import read_all
from tests.support.gateway import GatewayProcess, gateway, replicas
from tests.support.openai_engine import MODEL, engines
from tests.support.waiting import eventually

CLIENTS = 12


def switch(folder: Path, policy: str) -> None:
    command = [sys.executable, "-m", "mfsd.cli.ctl", "serve", "policy", policy, "--folder", str(folder)]
    subprocess.run(command, capture_output=True, check=True, timeout=200)


def policies(folder: Path) -> set[str]:
    return {engine.config.policy.value for engine in read_all([folder])[0]}


@pytest.mark.slow
def test_no_request_is_lost_while_the_policy_is_switched(tmp_path: Path) -> None:
    folder, numbers, enough = tmp_path / "status", itertools.count(), threading.Event()
    folder.mkdir()
    answered: dict[str, tuple[int, int, str]] = {}

    def client(front: GatewayProcess) -> None:
        while not enough.is_set():
            number = next(numbers)
            mark, tokens = f"n{number}", 3 + number % 17
            body = {"model": MODEL, "prompt": "word " * (5 + 37 * (number % 11)), "user": mark, "max_tokens": tokens}
            headers = {"x-session-id": f"s{number % 5}", "x-slo-ttft-ms": str(50 + 100 * (number % 7))}
            status, _, text = front.post({**body, "stream": True}, headers)
            answered[mark] = (status, tokens, text)

    with (
        engines(2, "tests.support.scheduled_engine", "eN", str(folder)) as made,
        gateway(tmp_path, replicas(*(one.url for one in made)) + "[state]\npoll_ms = 50\n") as front,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        clients = [pool.submit(client, front) for _ in range(CLIENTS)]
        try:
            for policy in (*Policy, Policy.FCFS):
                switch(folder, policy.value)
                eventually(lambda wanted=policy.value: policies(folder) == {wanted}, policy.value, pause_s=0.02)
                before = len(answered)
                eventually(lambda count=before: len(answered) > count + CLIENTS, "requests under it", pause_s=0.02)
        finally:
            enough.set()
        for one in clients:
            one.result()
        seen = [(r["body"]["user"], r["state"]) for one in made for r in one.seen()]
        assert all(one.seen() for one in made), "both engines have served"
    assert sorted(seen) == sorted((mark, "finished") for mark in answered), "each once, to its end"
    for mark, (status, tokens, text) in answered.items():
        events = [line for line in text.splitlines() if line]
        wanted = [f'data: {{"choices":[{{"text":"t{n} "}}]}}' for n in range(tokens)]
        assert (status, events) == (200, [*wanted, "data: [DONE]"]), mark
