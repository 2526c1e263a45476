"""`mfsctl host`: the fabric policy on this host's NICs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from mfsd.cli import complete
from mfsd.cli.commands.switch import Command, fail_clearly, policy_options, print_json
from mfsd.cli.output import Column, Form, output_options, print_table, printed
from mfsd.fabric.libraries import (
    LIBRARIES,
    Variable,
    dangerous_classes,
    kept,
    operators,
    service_levels,
    variables,
)
from mfsd.fabric.library_files import set_in_files
from mfsd.fabric.link_layer import infiniband_ports
from mfsd.fabric.plan import make_plan
from mfsd.fabric.policy import load_profile
from mfsd.policy.mark_text import SET_BY_US
from mfsd.policy.service_levels import SERVICE_LEVELS

if TYPE_CHECKING:
    from mfsd.fabric.host import Host, Result


def host_options(command: Command) -> Command:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--state-dir",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path("/var/lib/mfs/host"),
            show_default=True,
            help="Folder for the values found before the first apply.",
        ),
        click.option(
            "--qdisc",
            type=click.Choice(["auto", "on", "off"]),
            default="auto",
            show_default=True,
            help="Shaper for sockets and soft RoCE; auto: only where the device has no DCB.",
        ),
        click.option("--netns", help="Network namespace of the interface."),
        click.option("--group", help="Port group of the policy. Default: the first one."),
        click.option(
            "--dev", required=True, help="Network interface, for example eth1.", shell_complete=complete.interfaces
        ),
    ):
        command = option(command)
    return policy_options(command)


def open_host(
    policy: str,
    policy_file: Path | None,
    dev: str,
    group: str | None,
    netns: str | None,
    qdisc: Literal["auto", "on", "off"],
    state_dir: Path,
) -> Host:
    from mfsd.fabric.host import Host

    profile = load_profile(policy, policy_file)
    plan = make_plan(policy, profile, {group or next(iter(profile.port_groups)): [dev]})
    return Host(plan, netns=netns, qdisc=qdisc, state_dir=state_dir)


def report(results: list[Result], as_json: bool) -> None:
    if as_json:
        print_json(results)
        return
    for r in results:
        click.echo(f"{r.outcome:14}{r.setting}{_values(r)}")
        if r.reason:
            click.echo(f"{'':14}  {r.reason}" + (f"; {r.remedy}" if r.remedy else ""))


def _values(r: Result) -> str:
    if r.outcome in ("differs", "changed", "would change", "cannot set") and r.have is not None:
        return f": {_short(r.have, r.want)} -> {_short(r.want, r.have)}"
    return f": {_short(r.have, None)}" if r.have is not None else ""


def _short(value: Any, other: Any) -> str:
    """Shows of a map only where it differs from the other side."""
    if isinstance(value, dict) and isinstance(other, dict):
        parts = [f"{k}={v}" for k, v in value.items() if other.get(k) != v]
        return ", ".join(parts[:8]) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "") or "(nothing)"
    if isinstance(value, dict):
        return f"{len(value)} entries"
    return str(value)


@click.group()
def host() -> None:
    """Configure this host's NICs from the fabric policy.

    \b
    mfsctl host show   --dev eth1              # what is set, and what the policy wants
    mfsctl host apply  --dev eth1 --dry-run    # what would change
    mfsctl host apply  --dev eth1              # as root; changes only what differs
    mfsctl host verify --dev eth1              # exits with 1 unless all is as wanted
    mfsctl host apply  --dev eth1 --rollback   # restores what was there before
    mfsctl host env    --profile paper-k8      # variables for libraries that mark their own packets
    """


@host.command(epilog="\b\nExamples:\n  mfsctl host show --dev eth1\n  mfsctl host show --dev eth1 --profile paper-k8\n")
@host_options
@fail_clearly
def show(as_json: bool, **where: Any) -> None:
    """Show every setting beside what the policy wants. Changes nothing."""
    report(open_host(**where).show(), as_json)


@host.command(epilog="\b\nExamples:\n  mfsctl host verify --dev eth1\n  mfsctl host verify --dev eth1 --json\n")
@host_options
@fail_clearly
def verify(as_json: bool, **where: Any) -> None:
    """Like show, but exit with 1 unless every setting the device has is as wanted and one of them orders traffic."""
    from mfsd.fabric.host import verified

    results = open_host(**where).show()
    report(results, as_json)
    good = verified(results)
    if not good and not as_json:
        click.echo("not as the policy wants it: run mfsctl host apply, then read the reasons above", err=True)
    sys.exit(0 if good else 1)


@host.command(
    epilog="""\b
Examples:
  mfsctl host apply --dev eth1 --dry-run
  mfsctl host apply --dev eth1
  mfsctl host apply --dev eth1 --rollback
"""
)
@host_options
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--rollback", is_flag=True, help="Restore the values found before the first apply.")
@fail_clearly
def apply(as_json: bool, dry_run: bool, rollback: bool, **where: Any) -> None:
    """Write the settings that differ; exit with 1 if one could not be set.

    Settings that could not be set are listed with the reason; those that the device does not have are "not supported".
    """
    target = open_host(**where)
    results = target.rollback(dry_run) if rollback else target.apply(dry_run)
    report(results, as_json)
    sys.exit(0 if all(r.good for r in results) else 1)


@host.command(
    epilog="""\b
Examples:
  mfsctl host env --profile paper-k8
  eval "$(mfsctl host env --profile paper-k8 --for shell)"
  mfsctl host env --profile paper-k8 --for systemd > /etc/systemd/system/vllm.service.d/classes.conf
  mfsctl host env --profile paper-k8 --for kubernetes
"""
)
@policy_options
@click.option(
    "--for",
    "target",
    type=click.Choice(("shell", "systemd", "kubernetes")),
    help="Print text to paste: export lines, a drop-in of a service, or the env list of a container.",
)
@click.option("--infiniband", is_flag=True, help="Print service levels, which InfiniBand has in place of DSCPs.")
@output_options
@fail_clearly
def env(policy: str, policy_file: Path | None, target: str | None, infiniband: bool, form: Form) -> None:
    """Print the variables that give libraries their traffic class, by the fabric policy.

    They are for libraries that post past the preloaded library (GPU-initiated all-to-all, UCX on ConnectX), and for
    hosts without a daemon. mfs-run --policy sets the same variables and keeps those that the operator has set; so
    do the lines for a shell. A drop-in of systemd overrides the unit's own Environment=: remove from it the
    variables that the unit sets. MFS_SET_CLASSES names the variables printed here, which NIXL's adapter may set
    aside. Except for Kubernetes, variables that files of NCCL and UCX on this host set are left out. Where a port
    of this host is InfiniBand, NVSHMEM's class is left out, since some versions of NVSHMEM end with an error there.
    """
    profile = load_profile(policy, policy_file)
    of_libraries = variables(profile, infiniband=infiniband)
    files = set_in_files(os.environ) if target != "kubernetes" else {}
    left_out = kept([v.name for v in of_libraries], operators({}, files)) | dangerous_classes(infiniband_ports())
    for name in (v.name for v in of_libraries if v.name in left_out):
        click.echo(f"{name} is left out: {left_out[name]}", err=True)
    found = [_plain(v) for v in of_libraries if v.name not in left_out]
    if infiniband:
        found.append(_of_queue_pairs(service_levels(profile)))
    found.append(_set_from_here([str(one["variable"]) for one in found]))
    if target is not None:
        click.echo(pasted({str(one["variable"]): str(one["value"]) for one in found}, target))
    elif not printed(found, form, pretty=True):
        columns = (Column("VARIABLE"), Column("VALUE", True), Column("CLASS"), Column("STAGE"), Column("LIBRARY"))
        keys = ("variable", "value", "class", "stage", "library")
        rows = [one | ({"value": "the names above"} if one["variable"] == SET_BY_US else {}) for one in found]
        print_table(columns, [[str(one[key]) for key in keys] for one in rows], form)


DROP_IN = (
    "# These lines override the unit's own Environment=, and its EnvironmentFile= overrides them: remove what the",
    "# unit or a file of it sets, here and in MFS_SET_CLASSES, and with NCCL_IB_TC remove NCCL_GIN_IB_TC.",
    "# ExecStart=mfs-run --policy NAME -- ... sets the same variables and keeps those that are set.",
)


def pasted(values: Mapping[str, str], target: str) -> str:
    if target == "shell":
        return "\n".join(_unless_set({name: value for name, value in values.items() if name != SET_BY_US}))
    if target == "systemd":
        return "\n".join([*DROP_IN, "[Service]", *(f'Environment="{name}={value}"' for name, value in values.items())])
    return "\n".join(f'- {{name: {name}, value: "{value}"}}' for name, value in values.items())


def _unless_set(values: Mapping[str, str]) -> Iterator[str]:
    """Lines for a shell that set each variable unless it is set. Variables that a library uses in place of another one
    come first, and are set only while neither is."""
    others = {one.traffic_class: one.otherwise for one in LIBRARIES if one.otherwise}
    for name in sorted(values, key=lambda name: name not in others):
        found = "".join(f"${{{one}:-}}" for one in (name, others.get(name)) if one)
        ours = f'{SET_BY_US}="${{{SET_BY_US}:+${SET_BY_US} }}{name}"'
        yield f'[ -n "{found}" ] || export {name}={values[name]} {ours}'


def _set_from_here(names: Sequence[str]) -> dict[str, str | bool]:
    """Tells adapters and mfs-run which variables no operator has chosen, so that they may replace them."""
    every = {"class": "each", "stage": "each", "library": "NIXL's adapter"}
    return {"variable": SET_BY_US, "value": " ".join(names), **every, "seen": True}


def _of_queue_pairs(levels: str) -> dict[str, str | bool]:
    """The variable by which the preloaded library finds the service level of each queue pair's class."""
    every = {"class": "each", "stage": "each", "library": "any, under mfs-run"}
    return {"variable": SERVICE_LEVELS, "value": levels, **every, "seen": True}


def _plain(v: Variable) -> dict[str, str | bool]:
    return {
        "variable": v.name,
        "value": v.value,
        "class": v.class_name,
        "stage": v.library.stage.name.lower(),
        "library": v.library.name,
        "seen": v.library.seen,
    }
