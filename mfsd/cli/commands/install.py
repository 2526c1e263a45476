"""``mfsctl install``: makes services of this environment's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import click
import msgspec

from mfsd.cli import units
from mfsd.cli.daemon_call import plain_error
from mfsd.cli.output import Form, output_options, printed
from mfsd.cli.units import UnitError

EXIT_NOT_DONE = 1
WOULD: dict[units.Outcome, units.Outcome] = {
    "installed": "would install",
    "changed": "would change",
    "removed": "would remove",
}


class Installed(msgspec.Struct):
    """What `mfsctl install systemd --json` prints."""

    unit: str
    file: str
    outcome: units.Outcome
    program: str
    """The program that the unit starts; empty when the unit is removed."""
    ran: list[list[str]]
    """Commands that were run, or would be."""
    text: str
    """The unit; empty when it is removed."""


@click.group(epilog="\b\nExamples:\n  mfsctl install systemd --dry-run\n  sudo /opt/mfs/bin/mfsctl install systemd\n")
def install() -> None:
    """Install services for the programs of this environment."""


@install.command(
    epilog="""\b
Exit codes:
  0  done, or there was nothing to do
  1  not done; the message says why
  2  wrong usage

\b
Examples:
  mfsctl install systemd --dry-run               what would be written
  sudo /opt/mfs/bin/mfsctl install systemd       then: systemctl enable --now mfsd
  sudo /opt/mfs/bin/mfsctl install systemd --coordinator
  sudo /opt/mfs/bin/mfsctl install systemd --uninstall
"""
)
@click.option("--coordinator", is_flag=True, help="Use the unit of a coordinator instead of a node's daemon.")
@click.option("--uninstall", is_flag=True, help="Stop the service and remove its unit.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing. Needs no root.")
@output_options
def systemd(coordinator: bool, uninstall: bool, dry_run: bool, form: Form) -> None:
    """Write a systemd unit that starts the mfsd of this command's environment.

    The command starts nothing: `systemctl enable --now mfsd` starts the service, now and at every boot. After an
    upgrade, run the command again to bring the unit up to date; otherwise a second run changes nothing. What
    `systemctl edit` has added stays.
    """
    name = units.COORDINATOR if coordinator else units.DAEMON
    try:
        done = _uninstall(name, dry_run) if uninstall else _install(name, dry_run)
    except UnitError as error:
        click.echo(f"mfsctl install: {error}", err=True)
        sys.exit(EXIT_NOT_DONE)
    except OSError as error:
        click.echo(f"mfsctl install: {plain_error(error)}", err=True)
        sys.exit(EXIT_NOT_DONE)
    if not printed(done, form):
        _show(done, dry_run)


def _install(name: str, dry_run: bool) -> Installed:
    program = units.program()
    units.check_place(name, units.needed(program))
    text, file = units.unit_text(name, program), units.UNITS / name
    outcome = units.compare(file, text)
    commands = [] if outcome == "unchanged" else [["systemctl", "daemon-reload"]]
    if dry_run:
        return Installed(name, str(file), WOULD.get(outcome, outcome), str(program), commands, text)
    _check_rights(file.name)
    if outcome != "unchanged":
        units.write(file, text)
        _run(commands)
    return Installed(name, str(file), outcome, str(program), commands, text)


def _uninstall(name: str, dry_run: bool) -> Installed:
    file = units.UNITS / name
    outcome = units.compare(file, None)
    stop, reload = ["systemctl", "disable", "--now", name], ["systemctl", "daemon-reload"]
    commands = [] if outcome == "absent" else [stop, reload]
    if dry_run:
        return Installed(name, str(file), WOULD.get(outcome, outcome), "", commands, "")
    _check_rights(name)
    if outcome != "absent":
        _run([stop])
        file.unlink()
        _run([reload])
    return Installed(name, str(file), outcome, "", commands, "")


def _check_rights(name: str) -> None:
    if not units.RUNS.is_dir() or shutil.which("systemctl") is None:
        raise UnitError(
            f"systemd does not run this system (no {units.RUNS}): start mfsd with the service manager of this "
            "system; --dry-run shows the unit"
        )
    if os.geteuid() != 0:
        raise UnitError(f"only root may write {units.UNITS / name}: sudo {' '.join(sys.argv)}")


def _run(commands: list[list[str]]) -> None:
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            answer = result.stderr.strip() or f"ended with {result.returncode}"
            raise UnitError(f"{' '.join(command)}: {answer}")


def _show(done: Installed, dry_run: bool) -> None:
    click.echo(f"{done.file}: {done.outcome}")
    if done.program:
        click.echo(f"starts {done.program}")
    if dry_run:
        for command in done.ran:
            click.echo(f"would run: {' '.join(command)}")
        if done.outcome in ("would install", "would change"):
            click.echo(f"\n{done.text}", nl=False)
        return
    service = done.unit.removesuffix(".service")
    if done.outcome == "installed":
        click.echo(f"next: systemctl enable --now {service}")
    elif done.outcome == "changed":
        click.echo(f"next: systemctl restart {service}")
