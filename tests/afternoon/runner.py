"""Runs the page's commands, one after the other, in a clean system.

What `run:` may say: `until=TEXT` (a server: ready when it has said that; one with & at its end goes on behind, another
is ended by Ctrl-C), `lines=N` (Ctrl-C after so many), `eventually=TEXT` (asked again until it says so), `exit=N`,
`screen=COLUMNSxLINES` (a program of the whole screen, seen when `until` shows, then left with q), `seconds=N` (may take
so long).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.afternoon.console import Step
from tests.support.clean_system import CleanSystem
from tests.support.terminal import Terminal
from tests.support.waiting import TIMEOUT_S, eventually

REQUEST = "4711"
"""In the pages; here a request that there is."""


def options(step: Step) -> dict[str, str]:
    """What `run:` says."""
    found = {}
    for part in filter(None, step.notes.get("run", "").split("; ")):
        name, _, value = part.partition("=")
        found[name] = value
    return found


class Server:
    """A program that goes on, and what it says."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait(self, text: str, count: int = 1) -> list[str]:
        """What it had said when it had said that (any line, when the text is empty) so often."""

        def poll() -> list[str]:
            found = [at for at, line in enumerate(self.lines) if text in line]
            if len(found) >= count:
                return self.lines[: found[count - 1] + 1]
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.lines}"
            return []

        return eventually(poll, f"a line with {text!r}: {self.lines[-5:]}")

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code


@dataclass
class Runner:
    system: CleanSystem
    prelude: list[str] = field(default_factory=list)
    """Lines whose effect lasts: `export`, `unset` and `cd`."""
    behind: list[Server] = field(default_factory=list)

    def answers(self, step: Step) -> list[str]:
        """Runs it. AssertionError when it ends otherwise than the page says."""
        ways = options(step)
        line = step.line
        if REQUEST in line:
            line = line.replace(REQUEST, self._request(step))
        if line == "kill %1":
            assert self.behind.pop(0).end(signal.SIGTERM) in (0, 130, -signal.SIGTERM, 143)
            return []
        if "screen" in ways:
            return self._screen(self._command(step, line), ways)
        if line.endswith(" &") or (line.startswith("mfsd ") and "until" in ways) or "lines" in ways:
            return self._server(step, line, ways)
        if "eventually" in ways:
            return eventually(lambda: self._has(step, line, ways), f"{ways['eventually']!r} of {line}", pause_s=0.2)
        if exported := re.match(r"export (\w+)=", line):  # as the shell reads it now, once
            (value,) = self._run(step, f'{line}; printf "%s" "${exported[1]}"', ways)
            self.prelude.append(f"export {exported[1]}={shlex.quote(value)}")
            return []
        if re.match(r"(unset|cd) ", line):
            self.prelude.append(line)
        return self._run(step, line, ways)

    def end(self) -> None:
        while self.behind:
            self.behind.pop().end(signal.SIGTERM)

    def _command(self, step: Step, line: str) -> list[str]:
        there = "; ".join([*self.prelude, line])
        if step.place:
            there = f"mfsctl playground exec {step.place} -- sh -c {shlex.quote(line)}"
        return self.system.enter("bash", "-c", there)

    def _run(self, step: Step, line: str, ways: dict[str, str]) -> list[str]:
        done = subprocess.run(
            self._command(step, line),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=float(ways.get("seconds", TIMEOUT_S)),
        )
        wanted = {int(code) for code in ways.get("exit", "0").split(",")}
        assert done.returncode in wanted, f"$ {line}\nended with {done.returncode}:\n{done.stdout[-3000:]}"
        return done.stdout.splitlines()

    def _has(self, step: Step, line: str, ways: dict[str, str]) -> list[str]:
        try:
            answered = self._run(step, line, ways)
        except AssertionError:
            return []
        return answered if any(ways["eventually"] in one for one in answered) else []

    def _server(self, step: Step, line: str, ways: dict[str, str]) -> list[str]:
        server = Server(self._command(step, line.removesuffix(" &")))
        output = server.wait(ways.get("until", ""), int(ways.get("lines", "1"))) if ways else []
        if line.endswith(" &"):
            self.behind.append(server)
            return output
        wanted = {int(code) for code in ways.get("exit", "0,130").split(",")}
        code = server.end()
        assert code in wanted | {-signal.SIGINT}, f"$ {line}\nended with {code}:\n" + "\n".join(server.lines)
        return [*output, "^C"]

    def _screen(self, command: list[str], ways: dict[str, str]) -> list[str]:
        columns, _, rows = ways["screen"].partition("x")
        with Terminal(command, int(columns), int(rows)) as terminal:
            text = terminal.wait(lambda text: ways["until"] in text, ways["until"])
            terminal.press("q")
            assert terminal.wait_end() == 0
        return text.splitlines()

    def _request(self, step: Step) -> str:
        """One that is known there."""

        def poll() -> str:
            line = "mfsctl status --requests -o json"
            done = subprocess.run(self._command(step, line), capture_output=True, text=True, timeout=TIMEOUT_S)
            found = json.loads(done.stdout)["requests"] if done.returncode == 0 else []
            return str(found[0]["request_id"]) if found else ""

        return eventually(poll, "a request", pause_s=0.2)


def ran(runner: Runner, steps: list[Step]) -> Iterator[tuple[Step, list[str]]]:
    """Each that is run, with its answer."""
    try:
        for step in steps:
            if not step.skipped:
                yield step, runner.answers(step)
    finally:
        runner.end()
