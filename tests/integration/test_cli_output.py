"""What mfsctl writes: one line a row, nothing cut in a pipe, the same for programs, and quiet without a reader."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.shell_completion import ShellComplete

from mfsd._native import Client, Stage
from mfsd.cli.commands.completion import PROGRAMS
from mfsd.cli.ctl import main
from tests.integration.test_node_ctl import mfsctl
from tests.support.daemon import Daemon
from tests.support.terminal import Terminal
from tests.support.waiting import eventually

LONG = "a-process-with-a-very-long-name"
FOLLOW = ["-f", "--stage", "p2d", "-o", "json"]
# A window so large that the task which fills it is not given up for minutes.
HOLDS = '[nic.mfs0]\nrate = "8mbit"\n[arbiter]\nstale_after = "10s"\nwindow_min = "1gib"\nwindow = "1us"\n'


@pytest.fixture
def busy(folder: Path) -> Iterator[Daemon]:
    """A daemon with a program that has a long name, something in flight and something that waits, of request 4711."""
    with (
        Daemon(folder, HOLDS) as daemon,
        Client.attach(str(daemon.socket), process=LONG, timeout_ms=100_000) as client,
    ):
        nic = client.nic("mfs0", 7, 1_000_000)
        for size in (2_000_000_000, 1000, 1000):
            client.submit(size, stage=Stage.P2D, nic=nic, request_id=4711, layer=3)
        eventually(lambda: _held(daemon), "two tasks that wait")
        yield daemon


def _held(daemon: Daemon) -> bool:
    return sum(c.held_tasks for c in daemon.status().nics[0].classes) == 2


def columns(text: str) -> list[list[str]]:
    """The cells of lines, by two blanks between them."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_a_row_is_one_line_and_a_pipe_cuts_nothing(busy: Daemon) -> None:
    for command in (["status"], ["status", "-o", "wide"], ["trace"], ["rules"], ["status", "--requests"]):
        narrow, wide = (mfsctl(busy.socket, *command, COLUMNS=size).stdout for size in ("40", "400"))
        assert [line[:30] for line in narrow.splitlines()] == [line[:30] for line in wide.splitlines()]
        assert "…" not in narrow and "\x1b" not in narrow
    assert LONG in mfsctl(busy.socket, "status", COLUMNS="20").stdout
    head, *rows = columns(mfsctl(busy.socket, "trace").stdout)
    assert len(rows) == 3 and {len(row) for row in rows} == {len(head)}
    head, *rows = columns(mfsctl(busy.socket, "status", "--requests", "-o", "wide").stdout)
    assert head[0] == "REQUEST" and {len(row) for row in rows} == {len(head)} and rows[0][0] == "4711"


def test_a_terminal_cuts_what_may_be_cut(busy: Daemon) -> None:
    command = [sys.executable, "-m", "mfsd.cli.ctl", "status", "--socket", str(busy.socket)]
    with Terminal(command, 80, 30) as terminal:
        text = terminal.wait(lambda text: "PROCESS" in text and "active" in text, "the programs")
        (row,) = [line for line in text.splitlines() if "active" in line]
        assert "a-process" in row and "…" in row and len(row) <= 80
        assert terminal.wait_end() == 0


@pytest.mark.parametrize(
    "command", [["status"], ["status", "--requests"], ["trace"], ["rules"], ["switch", "systems"], ["switch", "policy"]]
)
def test_json_and_yaml_say_the_same(busy: Daemon, command: list[str]) -> None:
    def stable(value: object) -> str:
        moving = r'"(uptime_s|cpu_s|attached_s|age_s|[a-z_]*ago_s|waited_s|messages|[a-z_]*utilization)": [0-9.e-]+'
        return re.sub(moving, "", json.dumps(value))

    as_json = mfsctl(busy.socket, *command, "-o", "json").stdout
    assert stable(json.loads(as_json)) == stable(json.loads(mfsctl(busy.socket, *command, "--json").stdout))
    assert stable(yaml.safe_load(mfsctl(busy.socket, *command, "-o", "yaml").stdout)) == stable(json.loads(as_json))


def test_the_socket_may_stand_anywhere(busy: Daemon) -> None:
    for arguments in (
        ["--socket", str(busy.socket), "mode"],
        ["mode", "--socket", str(busy.socket)],
        ["rules", "--json", "--socket", str(busy.socket)],
        ["trace", "--socket", str(busy.socket), "--limit", "1"],
    ):
        result = mfsctl(None, *arguments, MFS_SOCKET="/nonexistent")
        assert result.returncode == 0, result.stderr
    assert mfsctl(busy.socket, "mode").stdout == "mode: enforce\n"


@pytest.mark.parametrize("command", ["status --json", "trace", "rules", "switch policy -o yaml", "--help"])
def test_a_reader_that_goes_away_is_no_error(busy: Daemon, command: str) -> None:
    line = f"{sys.executable} -m mfsd.cli.ctl --socket {busy.socket} {command} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=100)
    assert result.stderr == ""
    assert result.stdout.strip() in ("0", "141"), "0: it had written all before the reader ended"


def test_exit_codes_are_as_documented(busy: Daemon) -> None:
    for code, arguments in (
        (0, ["status", "--request", "4711"]),
        (1, ["status", "--request", "99"]),
        (2, ["switch", "render", "--nos", "eos", "--ports", "swp1"]),
        (2, ["switch", "render", "--nos", "sonic", "--ports", "Ethernet[4-0]"]),
        (1, ["switch", "render", "--nos", "sonic", "--ports", "Ethernet0", "--policy-file", "/nonexistent.toml"]),
        (2, ["status", "--nonsense"]),
    ):
        result = mfsctl(busy.socket, *arguments)
        assert result.returncode == code, (arguments, result.stderr)
        assert "Errno" not in result.stderr and "Traceback" not in result.stderr


def completed(*words: str, incomplete: str = "") -> set[str]:
    complete = ShellComplete(main, {}, "mfsctl", "_MFSCTL_COMPLETE")
    return {item.value for item in complete.get_completions(list(words), incomplete)}


def test_values_are_completed(busy: Daemon) -> None:
    assert "rocev2-2-lossless" in completed("switch", "render", "--profile")
    assert completed("host", "show", "--dev", incomplete="l") >= {"lo"}
    assert completed("--socket", str(busy.socket), "status", "--request") == {"4711"}
    assert completed("status", "--socket", str(busy.socket), "--request", incomplete="48") == set()
    assert len(completed("--socket", str(busy.socket), "trace", "--explain")) == 3
    assert completed("--socket", "/nonexistent", "status", "--request") == set()


def test_the_configuration_in_force_says_where_each_value_is_from(busy: Daemon) -> None:
    assert mfsctl(busy.socket, "mode", "observe").returncode == 0
    values = {v["key"]: v for v in json.loads(mfsctl(busy.socket, "config", "show", "--json").stdout)["values"]}
    file = str(busy.config_file)
    assert (values["mode"]["value"], values["mode"]["source"]) == ('"observe"', "mfsctl mode")
    assert (values["socket.path"]["value"], values["socket.path"]["source"]) == (f'"{busy.socket}"', "command line")
    assert (values['nic."mfs0".rate']["value"], values['nic."mfs0".rate']["source"]) == ('"8mbit"', file)
    assert (values["arbiter.window"]["value"], values["arbiter.window"]["source"]) == ('"1us"', file)
    assert values["arbiter.heartbeat"]["source"] == "default"
    misspelt = mfsctl(busy.socket, "config", "show", "arbitr.spin")
    assert misspelt.returncode == 1 and "no key begins with 'arbitr.spin'" in misspelt.stderr
    changed = columns(mfsctl(busy.socket, "config", "show", "arbiter", "--changed").stdout)
    assert [row[0] for row in changed[1:]] == ["arbiter.stale_after", "arbiter.window", "arbiter.window_min"]


def test_flows_are_shown_as_they_end(folder: Path) -> None:
    with (
        Daemon(folder) as daemon,
        Client.attach(str(daemon.socket), process="engine", timeout_ms=100_000) as client,
        subprocess.Popen(
            [*(sys.executable, "-m", "mfsd.cli.ctl", "flows", "--socket", str(daemon.socket)), *FOLLOW],
            stdout=subprocess.PIPE,
            text=True,
        ) as following,
    ):
        nic = client.nic("mfs0", 7, 1_000_000_000)
        lines: list[str] = []

        def read() -> None:
            assert following.stdout is not None
            lines.extend(following.stdout.readline() for _ in range(2))

        threading.Thread(target=read, daemon=True).start()

        def one() -> bool:
            """Until the recording has begun flows end unseen; the first that is shown may have begun before."""
            for stage in (Stage.REUSE, Stage.P2D):
                task = client.submit(1000, stage=stage, nic=nic, request_id=4711, layer=3)
                eventually(lambda: client.permits(), "the permit")
                client.complete(task)
            return len(lines) == 2

        eventually(one, "flows that are shown")
        following.send_signal(signal.SIGINT)
        flow = json.loads(lines[1])
        assert (flow["stage"], flow["request_id"], flow["size_bytes"], flow["layer"]) == ("p2d", 4711, 1000, 3)
        assert flow["process"] == "engine" and flow["end"] == "done" and flow["took_s"] >= 0
        following.communicate(timeout=100)
        assert following.returncode == 0
        table = mfsctl(daemon.socket, "flows", "--seconds", "0.1")
        assert table.returncode == 0 and "No such flow ended" in table.stderr


def test_a_bug_report_has_what_helps(busy: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    result = mfsctl(
        busy.socket, "bugreport", "-o", str(file), "--address", "127.0.0.1:1", MFS_SECRET_KEY="hidden-value"
    )
    assert result.returncode == 0 and result.stdout.strip() == str(file)
    assert "coordinator.json" in result.stderr, "what is not in it is named"
    with tarfile.open(file) as archive:
        members = {name.partition("/")[2]: archive.extractfile(name) for name in archive.getnames()}
        texts = {name: member.read().decode() for name, member in members.items() if member is not None}
    assert file.stat().st_mode & 0o077 == 0
    assert LONG in texts["status.json"] and json.loads(texts["doctor.json"])["findings"]
    assert json.loads(texts["slowest.json"])["about"] == "request 4711"
    assert "hidden-value" not in "".join(texts.values()) and "MFS_SECRET_KEY=(left out)" in texts["environment.txt"]


def test_help_by_its_short_name() -> None:
    modules = ("mfsd.cli.ctl", "mfsd.cli.daemon", "nccl_shim.run", "mfsd.soft_roce.launcher")
    for program, module in zip(PROGRAMS, modules, strict=True):
        result = subprocess.run([sys.executable, "-m", module, "-h"], capture_output=True, text=True, timeout=100)
        assert result.returncode == 0 and "Usage:" in result.stdout, program
