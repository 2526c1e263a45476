"""What `mfsctl switch` and `mfsctl fabric` do with unusual ports, files and options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mfsd.cli.commands.fabric import fabric
from mfsd.cli.commands.switch import switch

EOS = ("--nos", "eos", "--ports", "Ethernet1/1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(switch, arguments)


@pytest.mark.parametrize(
    ("nos", "short", "full"),
    [
        ("eos", "Et[1-2]/1", "Ethernet[1-2]/1"),
        ("nxos", "eth1/[1-2]", "Ethernet1/[1-2]"),
        ("nxos", "E1/[1-2]", "Ethernet1/[1-2]"),
        ("nxos", "ethernet1/[1-2]/1/1", "Ethernet1/[1-2]/1/1"),
    ],
)
def test_ports_have_the_names_of_the_running_configuration(nos: str, short: str, full: str, tmp_path: Path) -> None:
    rendered = run("render", "--nos", nos, "--ports", full).stdout
    assert "interface Ethernet1/" in rendered
    assert run("render", "--nos", nos, "--ports", short).stdout == rendered
    assert run("check", "--nos", nos, "--ports", short).exit_code == 0
    running = tmp_path / "running"
    running.write_text(rendered)
    assert run("diff", "--nos", nos, "--ports", short, "--running", str(running)).exit_code == 0


def test_a_port_under_two_names_is_one() -> None:
    result = run("render", "--nos", "eos", "--ports", "Et1/1,Ethernet1/1")
    assert result.exit_code == 2 and "Ethernet1/1 is listed twice" in result.output


def test_json_goes_to_the_file_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "out"
    result = run("render", *EOS, "--json", "-o", str(file))
    assert result.exit_code == 0 and not result.stdout
    assert json.loads(file.read_text())["text"] == run("render", *EOS).stdout


@pytest.mark.parametrize("options", [("--running", "FILE", "--apply"), ("--running", "FILE", "--netns", "n")])
def test_a_file_is_not_applied(options: tuple[str, ...], tmp_path: Path) -> None:
    """It would end with 1 for the difference, having applied nothing."""
    file = tmp_path / "running"
    file.touch()
    result = run("diff", "--nos", "linux", "--ports", "eth1", *(str(file) if o == "FILE" else o for o in options))
    assert result.exit_code == 2 and f"{options[2]}: " in result.output and "leave --running out" in result.output


def test_a_namespace_of_another_system_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "running"
    file.touch()
    result = run("diff", *EOS, "--running", str(file), "--netns", "n")
    assert result.exit_code == 2 and "--netns: " in result.output


@pytest.mark.parametrize(("command", "option"), [("check", "--config"), ("diff", "--running")])
def test_a_file_that_is_no_text_is_named(command: str, option: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"interface \xff")
    result = run(command, *EOS, option, str(file))
    assert result.exit_code == 1
    assert result.output == f"Error: {option} {file}: byte 10 is not UTF-8; give the configuration as text\n"


@pytest.mark.parametrize("nos", ["cumulus", "eos", "junos", "nxos", "onyx", "sonic", "linux"])
@pytest.mark.parametrize("text", ["", " \n\n"])
def test_an_empty_file_passes_no_check(nos: str, text: str, tmp_path: Path) -> None:
    """As of a rendering that failed into it."""
    ports = {"cumulus": "swp1", "onyx": "1/1", "junos": "et-0/0/1", "linux": "eth1", "sonic": "Ethernet0"}
    file = tmp_path / "file"
    file.write_text(text)
    result = run("check", "--nos", nos, "--ports", ports.get(nos, "Ethernet1/1"), "--config", str(file))
    assert result.exit_code == 1 and result.output == f"Error: --config {file}: is empty; render it again\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--port", "99999"),
        ("serve", "--port", "-1"),
        ("probe", "localhost", "--port", "99999"),
        ("probe", "localhost", "--port", "0"),
        ("probe", "localhost", "--seconds", "-1"),
        ("probe", "localhost", "--seconds", "nan"),
        ("probe", "localhost", "--seconds", "inf"),
    ],
)
def test_numbers_that_nothing_can_have_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(fabric, arguments)
    assert result.exit_code == 2 and f"Invalid value for '{arguments[-2]}'" in result.output
