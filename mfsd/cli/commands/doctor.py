"""``mfsctl doctor``: will programs on this node really be scheduled?"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mfsd.cli import complete
from mfsd.cli.commands.switch import fail_clearly, policy_options, print_json
from mfsd.cli.daemon_call import ATTACH_SOCKET
from mfsd.cli.program import daemon_command

if TYPE_CHECKING:
    from mfsd.fabric.policy import Profile
    from mfsd.observe.doctor.finding import Report

EXIT = {"scheduled": 0, "not scheduled": 1, "cannot tell": 4}
COLOURS = {"fail": "red", "warn": "yellow", "unknown": "cyan", "info": "blue", "ok": "green"}


@click.command(
    context_settings={"ignore_unknown_options": False},
    epilog="""\b
Exit codes:
  0  scheduled: nothing failed (still read the warnings)
  1  not scheduled: at least one finding of severity fail
  2  wrong usage
  4  cannot tell: nothing failed, but something that matters could not be read

\b
Examples:
  mfsctl doctor
  mfsctl doctor -- vllm serve MODEL           examine the program, do not run it
  sudo mfsctl doctor --pid $(pgrep -f vllm)   a running one
  mfsctl doctor --peer decode-7 --json
  mfsctl doctor --verbs                       also move a message over each port
""",
)
@click.option("--pid", type=click.IntRange(min=1), help="Also examine this running process.")
@click.option("--peer", metavar="ADDR", help="Also test the path to ADDR; for DSCPs, run `mfsctl fabric serve` there.")
@click.option(
    "--dev",
    "interfaces",
    multiple=True,
    metavar="IF",
    help="Interfaces to examine. Default: those of the RDMA devices.",
    shell_complete=complete.interfaces,
)
@click.option("--coordinator", "coordinators", multiple=True, metavar="HOST:PORT", help="Coordinator to reach.")
@click.option("--group", help="Port group of the policy that the interfaces belong to. Default: the first one.")
@click.option(
    "--verbs",
    is_flag=True,
    help="Move a message over each RDMA port: make a queue pair, connect it to itself, write once.",
)
@click.option("--quiet", is_flag=True, help="Leave out findings that are in order.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/doctor.md has the schema.")
@policy_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@fail_clearly
@daemon_command
def doctor(
    control: Path,
    pid: int | None,
    peer: str | None,
    interfaces: tuple[str, ...],
    coordinators: tuple[str, ...],
    group: str | None,
    verbs: bool,
    quiet: bool,
    as_json: bool,
    policy: str,
    policy_file: Path | None,
    command: tuple[str, ...],
) -> None:
    """Check whether programs on this node will really be scheduled, and print what to do if not.

    The doctor examines the shim, NCCL and Mooncake, the daemon, the RDMA devices, settings that override traffic
    classes, the NIC against the fabric policy, the path, clocks and limits. COMMAND is examined, not run. The
    doctor changes nothing; only --verbs makes queue pairs and sends. Root sees more. Without --profile and
    --policy-file, the policy is the one by which the daemon marks ([wire] in mfsd.toml).
    """
    from mfsd.fabric.policy import PolicyError, load_profile
    from mfsd.observe.doctor.examine import examine
    from mfsd.observe.doctor.host import Host

    given = click.get_current_context().get_parameter_source("policy") != ParameterSource.DEFAULT or policy_file
    try:
        policy, profile = (policy, load_profile(policy, policy_file)) if given else _daemons_profile(control)
    except PolicyError as error:  # exit code 1 is a verdict
        raise click.UsageError(str(error)) from error
    if group is not None and group not in profile.port_groups:
        raise click.UsageError(
            f"--group: {group!r} is not a port group of {policy}; use one of {', '.join(profile.port_groups)}"
        )
    host = Host(
        click.get_current_context().meta[ATTACH_SOCKET].absolute(),
        control.absolute(),
        policy,
        profile,
        port_group=group,
        pid=pid,
        command=command,
        peer=peer,
        interfaces=interfaces,
        coordinators=coordinators,
        try_verbs=verbs,
    )
    report = examine(host)
    if as_json:
        print_json(report)
    else:
        show(report, quiet)
    sys.exit(EXIT[report.verdict])


def _daemons_profile(control: Path) -> tuple[str, Profile]:
    """Returns the profile in the daemon's configuration and its name; the default if there is none."""
    from mfsd.fabric.policy import PolicyError
    from mfsd.node.config import WireConfig
    from mfsd.node.control import ConfigReply, ConfigRequest
    from mfsd.node.control_client import Refused, Unreachable, ask
    from mfsd.node.wire import fabric_profile

    with contextlib.suppress(Unreachable, Refused, PolicyError, ValueError):
        reply = ask(control, ConfigRequest())
        if isinstance(reply, ConfigReply):
            values = {value.key: value.value for value in reply.values}
            wire = [json.loads(values.get(f"wire.{key}", '""')) for key in ("profile", "policy_file")]
            return fabric_profile(WireConfig(profile=wire[0], policy_file=wire[1]))
    return fabric_profile(WireConfig())


def show(report: Report, quiet: bool) -> None:
    for f in report.findings:
        if quiet and f.severity == "ok":
            continue
        subject = f"{f.subject}: " if f.subject else ""
        click.echo(click.style(f"{f.severity:8}", COLOURS[f.severity]) + f"{f.id}  {subject}{f.reason}")
        if f.remedy and f.severity != "ok":
            click.echo(f"{'':8}-> {f.remedy}")
    counted = ", ".join(f"{count} {severity}" for severity, count in report.counts.items() if count)
    click.echo(f"{report.verdict}: {counted}", err=True)
