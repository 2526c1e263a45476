"""`mfsctl switch`: turns one policy file into the configuration of every switch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from mfsd.cli import complete
from mfsd.cli.daemon_call import plain_error
from mfsd.cli.output import Column, Form, output_options, print_table, printed
from mfsd.fabric.diff import Change
from mfsd.fabric.findings import Finding, failed
from mfsd.fabric.limits import ASICS
from mfsd.fabric.plan import Plan, check_once, check_port_names, headroom_bytes, make_plan, parse_ports
from mfsd.fabric.policy import DEFAULT_PROFILE, PolicyError, Profile, fold_classes, load_profile, load_profiles
from mfsd.fabric.system import About, LiveSystem, Rendered
from mfsd.fabric.systems import SYSTEMS

Command = TypeVar("Command", bound=Callable[..., Any])
PATH = click.Path(path_type=Path, dir_okay=False)


def json_text(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_json(value: Any) -> None:
    click.echo(json_text(value))


def policy_options(command: Command) -> Command:
    """Adds `--profile` and `--policy-file`, which every command of the fabric takes."""
    command = click.option(
        "--policy-file", type=PATH, help="Policy file with your own profiles. Default: the shipped one."
    )(command)
    return click.option(
        "--profile",
        "--policy",
        "policy",
        default=DEFAULT_PROFILE,
        show_default=True,
        metavar="PROFILE",
        help="Profile of the policy file; mfsctl switch policy lists them.",
        shell_complete=complete.profiles,
    )(command)


def plan_options(command: Command) -> Command:
    command = click.option(
        "--ports",
        multiple=True,
        metavar="[GROUP=]NAME,...",
        help="Ports to configure, by port group of the policy; ranges: Ethernet[0-28:4]. Repeat for more groups.",
    )(command)
    command = policy_options(command)
    return click.option("--nos", required=True, type=click.Choice(list(SYSTEMS)), help="Network operating system.")(
        command
    )


def fail_clearly(command: Command) -> Command:
    """Turns mistakes in policies, ports and files, and missing packages, into one-line errors."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise click.ClickException(plain_error(error)) from error
        except (PolicyError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            problem = f"{error}: this installation is incomplete: run pip install --force-reinstall . in its checkout"
            raise click.ClickException(problem) from error

    return run  # type: ignore[return-value]


def load_plan(nos: str, policy: str, policy_file: Path | None, ports: tuple[str, ...]) -> Plan:
    profile, system = load_profile(policy, policy_file), SYSTEMS[nos]
    about = system.about
    try:
        parsed = parse_ports(profile, ports)
        check_port_names(parsed, about.port_pattern, about.title, about.port_example)
        parsed = {group: [system.port_name(name) for name in names] for group, names in parsed.items()}
        check_once([name for names in parsed.values() for name in names], "list every port once")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return make_plan(policy, profile, parsed)


def read_text(option: str, path: Path) -> str:
    """Raises ValueError when it is no text."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{option} {path}: byte {error.start} is not UTF-8; give the configuration as text") from error


@click.group()
def switch() -> None:
    """Configure switches from the fabric policy.

    \b
    mfsctl switch policy                                   # the shipped profiles
    mfsctl switch systems                                  # what can be configured
    mfsctl switch render --nos sonic --ports Ethernet[0-28:4] > mfs.json
    mfsctl switch check  --nos sonic --ports Ethernet[0-28:4] --asic tomahawk
    mfsctl switch diff   --nos sonic --ports Ethernet[0-28:4] --running config_db.json
    """


@switch.command(
    epilog="\b\nExamples:\n  mfsctl switch policy\n  mfsctl switch policy paper-k8\n  mfsctl switch policy -o yaml\n"
)
@click.argument("profile", required=False, shell_complete=complete.profiles)
@click.option("--policy-file", type=PATH, help="Policy file with your own profiles.")
@output_options
@fail_clearly
def policy(profile: str | None, policy_file: Path | None, form: Form) -> None:
    """List the profiles of a policy file, or show what PROFILE means."""
    if profile is None:
        profiles = load_profiles(policy_file)
        listed = {name: {"summary": p.summary, "digest": p.digest} for name, p in profiles.items()}
        if not printed(listed, form, pretty=True):
            columns = (Column("PROFILE"), Column("CLASSES", True), Column("LOSSLESS", True), Column("DIGEST"))
            rows = [
                [name, str(len(p.classes)), str(len(p.lossless_priorities)), p.digest, p.summary]
                for name, p in profiles.items()
            ]
            print_table((*columns, Column("WHAT IT IS", cut=True)), rows, form)
        return
    chosen = load_profile(profile, policy_file)
    if not printed({"digest": chosen.digest, "fold": fold_classes(chosen), "profile": chosen}, form, pretty=True):
        _show_profile(profile, chosen, form)


CLASSES = (
    Column("CLASS"),
    Column("MFS"),
    Column("DSCP", cut=True),
    Column("PRIORITY", True),
    Column("LOSSLESS"),
    Column("SCHEDULING"),
    Column("FLOOR", True),
    Column("CEILING", True),
)
GROUPS = (
    Column("PORT GROUP"),
    Column("SPEED", True),
    Column("CABLE", True),
    Column("ECN FROM", True),
    Column("ECN TO", True),
    Column("HEADROOM", True),
)


def _show_profile(name: str, profile: Profile, form: Form) -> None:
    fold = fold_classes(profile)
    rows = [
        [
            c.name,
            ",".join(str(m) for m, f in enumerate(fold) if f == i) or "none",
            ",".join(map(str, (c.dscp, *c.also_dscp))),
            str(c.priority),
            "yes" if c.lossless else "no",
            "strict" if c.scheduling == "strict" else f"dwrr {c.weight_percent} %",
            f"{c.floor_percent} %",
            f"{c.ceiling_percent} %",
        ]
        for i, c in enumerate(profile.classes)
    ]
    click.echo(f"{name}, digest {profile.digest}; MFS: its classes; headroom: for each lossless class\n")
    print_table(CLASSES, rows, form)
    click.echo()
    thresholds = {e.speed_gbps: e for e in profile.ecn}
    groups = []
    for group, g in profile.port_groups.items():
        e = thresholds.get(g.speed_gbps)
        ecn = [f"{e.min_bytes:,}", f"{e.max_bytes:,}"] if e else ["-", "-"]
        headroom = f"{headroom_bytes(g.speed_gbps, g.cable_m, g.mtu_bytes):,}"
        groups.append([group, f"{g.speed_gbps:g} Gbit/s", f"{g.cable_m} m", *ecn, headroom])
    print_table(GROUPS, groups, form)


@switch.command(epilog="\b\nExamples:\n  mfsctl switch systems\n  mfsctl switch systems --json\n")
@output_options
def systems(form: Form) -> None:
    """List the network operating systems and how their configuration is loaded."""
    listed: list[About] = [system.about for system in SYSTEMS.values()]
    if not printed(listed, form, pretty=True):
        columns = (Column("NOS"), Column("SYSTEM", cut=True), Column("PORTS LIKE"), Column("LOAD WITH", cut=True))
        print_table(columns, [[s.name, s.title, s.port_example, s.load] for s in listed], form)


@switch.command(
    "render",
    epilog="""\b
Examples:
  mfsctl switch render --nos sonic --ports Ethernet[0-28:4] > mfs.json
  mfsctl switch render --nos eos --ports hosts=Ethernet[1-8]/1 -o mfs.txt
  mfsctl switch render --nos linux --ports eth1 --profile paper-k8
""",
)
@plan_options
@click.option("-o", "--output", type=PATH, help="File to write instead of standard output.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the text, and what it cannot express.")
@fail_clearly
def render_command(
    nos: str,
    policy: str,
    policy_file: Path | None,
    ports: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the configuration of a switch. Nothing is applied.

    Read standard error: it lists what the system cannot express.
    """
    rendered = SYSTEMS[nos].render(load_plan(nos, policy, policy_file, ports))
    text = f"{json_text(rendered)}\n" if as_json else rendered.text
    if output:
        output.write_text(text)
    else:
        click.echo(text, nl=False)
    if not as_json:
        _warn(rendered)


def _warn(rendered: Rendered) -> None:
    for s in rendered.shortfalls:
        click.echo(f"not expressed: {s.what}: {s.why} ({s.remedy})", err=True)


@switch.command(
    epilog="""\b
Examples:
  mfsctl switch check --nos sonic --ports Ethernet[0-28:4] --asic tomahawk
  mfsctl switch check --nos eos --ports Ethernet[1-8]/1 --config mfs.txt
"""
)
@plan_options
@click.option("--config", type=PATH, help="Check this file instead of a fresh rendering.")
@click.option("--asic", type=click.Choice(list(ASICS)), help="Add up headroom against this chip's packet memory.")
@click.option("--yang", type=click.Path(path_type=Path, file_okay=False), help="Folder of YANG models (sonic, nxos).")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@fail_clearly
def check(
    nos: str,
    policy: str,
    policy_file: Path | None,
    ports: tuple[str, ...],
    config: Path | None,
    asic: str | None,
    yang: Path | None,
    as_json: bool,
) -> None:
    """Check a configuration against the vendor's schema and the limits of switch silicon.

    Exits with 1 when a check failed. "not checked" says what is missing and where to get it; it is never a
    pass.
    """
    plan, system = load_plan(nos, policy, policy_file, ports), SYSTEMS[nos]
    text = read_text("--config", config) if config else system.render(plan).text
    if not text.strip():
        raise ValueError(f"--config {config}: is empty; render it again")
    findings = system.check(text, yang) + system.limits(plan, asic)
    show_findings(findings, as_json)
    sys.exit(1 if failed(findings) else 0)


def show_findings(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        print_json(findings)
        return
    colours = {"pass": "green", "warn": "yellow", "fail": "red", "not checked": "cyan"}
    for f in findings:
        click.echo(click.style(f"{f.status:12}", colours[f.status]) + f"{f.check}: {f.message}")
        if f.remedy and f.status != "pass":
            click.echo(f"{'':12}{f.remedy}")


@switch.command(
    epilog="""\b
Examples:
  mfsctl switch diff --nos sonic --ports Ethernet[0-28:4] --running config_db.json
  mfsctl switch diff --nos linux --ports eth1
  mfsctl switch diff --nos linux --ports eth1 --apply
"""
)
@plan_options
@click.option("--running", type=PATH, help="The running configuration, as the switch prints it (not for linux).")
@click.option("--netns", help="Linux only: the network namespace of the ports.")
@click.option("--apply", "do_apply", is_flag=True, help="Linux only: after showing the difference, apply it.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@fail_clearly
def diff(
    nos: str,
    policy: str,
    policy_file: Path | None,
    ports: tuple[str, ...],
    running: Path | None,
    netns: str | None,
    do_apply: bool,
    as_json: bool,
) -> None:
    """Show what the policy would change on a switch; exit with 1 if anything differs.

    Only settings that MFS owns are compared. For linux the live ports are read; --apply then loads the
    configuration and compares again. Other systems are never written to: load the rendered file with their
    own tools, which `mfsctl switch systems` names.
    """
    plan, system = load_plan(nos, policy, policy_file, ports), SYSTEMS[nos]
    title = system.about.title
    if do_apply and not isinstance(system, LiveSystem):
        raise click.ClickException(
            f"--apply: MFS does not write to {title}; render a file and load it there: {system.about.load}"
        )
    if netns and not isinstance(system, LiveSystem):
        raise click.UsageError(f"--netns: {title} has no network namespaces of this host; leave it out")
    if running and (do_apply or netns):
        option = "--apply" if do_apply else "--netns"
        raise click.UsageError(f"{option}: is about the live ports; leave --running out")
    if isinstance(system, LiveSystem) and running is None:
        changes = system.diff_live(plan, netns)
        _show_changes(changes, as_json)
        if do_apply and changes:
            system.apply_live(plan, netns)
            left = system.diff_live(plan, netns)
            if left:
                raise click.ClickException(f"applied, but {len(left)} settings did not take: {left[0]}")
            click.echo("applied", err=True)
            return
    elif running is None:
        raise click.ClickException(f"--running: give the file with the running configuration of {title}")
    else:
        changes = system.diff(system.render(plan).text, read_text("--running", running))
        _show_changes(changes, as_json)
    sys.exit(1 if changes else 0)


def _show_changes(changes: list[Change], as_json: bool) -> None:
    if as_json:
        print_json(changes)
        return
    for change in changes:
        click.echo(str(change))
    differences = "1 difference" if len(changes) == 1 else f"{len(changes) or 'no'} differences"
    click.echo(differences, err=True)
