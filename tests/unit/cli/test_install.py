"""Units of systemd: what is written, what is refused, and that a second time changes nothing. A real systemd
runs them in docs/afternoon.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mfsd.cli import units
from mfsd.cli.ctl import main
from mfsd.cli.units import UnitError

NAMES = (units.DAEMON, units.COORDINATOR)


class Host:
    """Folders for units, and a `systemctl` that writes down what it is asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units, self._log = folder / "units", folder / "log"
        self.units.mkdir()
        (folder / "run").mkdir()
        self._systemctl = folder / "bin" / "systemctl"
        self._systemctl.parent.mkdir()
        self.answer(0)
        monkeypatch.setenv("PATH", f"{self._systemctl.parent}:{os.environ['PATH']}")
        monkeypatch.setattr(units, "UNITS", self.units)
        monkeypatch.setattr(units, "RUNS", folder / "run")
        monkeypatch.setattr(units, "needed", lambda _: iter(()))  # this environment may be anywhere
        monkeypatch.setattr(os, "geteuid", lambda: 0)

    def answer(self, code: int, printed: str = "") -> None:
        self._systemctl.write_text(f'#!/bin/sh\necho "$@" >> {self._log}\necho "{printed}" >&2\nexit {code}\n')
        self._systemctl.chmod(0o755)

    def asked(self) -> list[str]:
        """What systemctl was asked since the last call."""
        found = self._log.read_text().splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return found

    def run(self, *arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["install", "systemd", *arguments])
        assert result.exit_code == code, result.output
        return result

    def outcome(self, *arguments: str) -> str:
        return str(json.loads(self.run("--json", *arguments).stdout)["outcome"])


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_what_is_written(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(units.unit_text(name, units.program()))
    command: list[str | Path] = ["systemd-analyze", "verify", "--man=no", file]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
    file.write_text(units.unit_text(name, tmp_path / "nowhere" / "mfsd"))
    assert subprocess.run(command, capture_output=True).returncode != 0, "it looks for the program"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("place", "written"),
    [
        ("/opt/mfs/bin/mfsd", "/opt/mfs/bin/mfsd"),
        ("/opt/the mfs/bin/mfsd", '"/opt/the mfs/bin/mfsd"'),
        ("/opt/100%/mfsd", "/opt/100%%/mfsd"),
    ],
)
def test_the_unit_starts_the_program_of_this_environment(name: str, place: str, written: str) -> None:
    text = units.unit_text(name, Path(place))
    arguments = " --coordinator" if name == units.COORDINATOR else ""
    assert f"\nExecStart={written}{arguments}\n" in text and "/usr/bin/env" not in text


def test_a_second_time_changes_nothing(host: Host) -> None:
    file = host.units / units.DAEMON
    assert host.run().stdout.splitlines() == [
        f"{file}: installed",
        f"starts {units.program()}",
        "next: systemctl enable --now mfsd",
    ]
    assert file.stat().st_mode & 0o777 == 0o644 and host.asked() == ["daemon-reload"]
    before = file.stat().st_ino, file.stat().st_mtime_ns
    assert host.outcome() == "unchanged"
    assert host.asked() == [] and (file.stat().st_ino, file.stat().st_mtime_ns) == before
    file.write_text(file.read_text().replace("WatchdogSec=10", "WatchdogSec=11"))
    assert "next: systemctl restart mfsd" in host.run().stdout
    assert host.asked() == ["daemon-reload"] and "WatchdogSec=10" in file.read_text()
    assert sorted(host.units.iterdir()) == [file], "no other file"


def test_a_dry_run_only_says_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(units, "RUNS", host.units / "nowhere")
    printed = host.run("--dry-run", "--coordinator").stdout
    assert f"{host.units / units.COORDINATOR}: would install" in printed and "[Service]" in printed
    assert "would run: systemctl daemon-reload" in printed
    shown = json.loads(host.run("--dry-run", "--json").stdout)
    assert (shown["outcome"], shown["program"]) == ("would install", str(units.program()))
    assert shown["text"] == units.unit_text(units.DAEMON, units.program())
    assert list(host.units.iterdir()) == [] and host.asked() == []


def test_what_was_installed_can_be_taken_away(host: Host) -> None:
    host.run()
    host.run("--coordinator")
    host.asked()
    assert host.outcome("--uninstall", "--dry-run") == "would remove"
    assert host.asked() == []
    assert host.outcome("--uninstall") == "removed"
    assert host.asked() == ["disable --now mfsd.service", "daemon-reload"]
    assert [file.name for file in host.units.iterdir()] == [units.COORDINATOR]
    assert host.outcome("--uninstall") == "absent" and host.asked() == []


@pytest.mark.parametrize("arguments", [[], ["--uninstall"], ["--dry-run"]])
def test_a_foreign_unit_is_left_alone(host: Host, arguments: list[str]) -> None:
    file = host.units / units.DAEMON
    file.write_text("[Service]\nExecStart=/usr/bin/mfsd\n")
    result = host.run(*arguments, code=1)
    assert f"{file} was not written by mfsctl install systemd: move it away" in result.stderr
    assert file.read_text().startswith("[Service]") and host.asked() == []


def test_without_root_or_systemd_the_remedy_is_reported(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert f"only root may write {host.units / units.DAEMON}: sudo " in host.run(code=1).stderr
    monkeypatch.setattr(units, "RUNS", host.units / "nowhere")
    assert "systemd does not run this system" in host.run(code=1).stderr
    assert list(host.units.iterdir()) == [] and host.asked() == []


def test_what_systemctl_says_is_passed_on(host: Host) -> None:
    host.answer(1, "Failed to reload daemon: Access denied")
    assert (
        host.run(code=1).stderr == "mfsctl install: systemctl daemon-reload: Failed to reload daemon: Access denied\n"
    )


@pytest.mark.parametrize(
    ("place", "setting"),
    [("/root/venv/bin/mfsd", "ProtectHome=yes"), ("/home/a/mfsd", "ProtectHome=yes"), ("/tmp/mfsd", "PrivateTmp=yes")],
)
def test_a_place_that_a_service_does_not_see_is_refused(place: str, setting: str) -> None:
    for name in NAMES:
        assert f"{setting}\n" in units.unit_text(name, units.program()), "the reason is in the unit"
        with pytest.raises(UnitError, match=f"{place} is below .*{setting}"):
            units.check_place(name, iter([Path(place)]))


def test_a_closed_folder_is_for_the_daemon_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "HIDDEN", {})
    program = tmp_path / "closed" / "mfsd"
    program.parent.mkdir(mode=0o700)
    shutil.copy(units.program(), program)
    units.check_place(units.DAEMON, iter([program]))
    with pytest.raises(UnitError, match="the coordinator's user may not enter"):
        units.check_place(units.COORDINATOR, iter([program]))


def test_it_says_which_environment_lacks_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mfsd.cli.units.sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(UnitError, match=f"{tmp_path}/mfsd is missing"):
        units.program()
