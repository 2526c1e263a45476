"""`mfsctl fabric`: tests what a path really does with the classes."""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
from pathlib import Path

import click

from mfsd.cli.commands.switch import fail_clearly, policy_options, print_json
from mfsd.cli.numbers import Seconds
from mfsd.fabric.policy import Profile, load_profile
from mfsd.fabric.probe import PORT, DscpResult, PairResult, Reflector, probe_dscp, probe_pair


@click.group()
def fabric() -> None:
    """Test what a network path really does with the classes.

    \b
    mfsctl fabric serve                 # on the peer
    mfsctl fabric probe PEER            # which DSCPs arrive, which classes are kept apart
    """


@fabric.command(epilog="\b\nExamples:\n  mfsctl fabric serve\n  mfsctl fabric serve --bind 10.1.0.7\n")
@click.option("--bind", default="0.0.0.0", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="UDP and TCP port.")
@fail_clearly
def serve(bind: str, port: int) -> None:
    """Answer probes from other nodes until interrupted."""
    reflector = Reflector(bind, port)
    click.echo(f"answering probes on {bind} port {reflector.port}; stop with Ctrl-C", err=True)
    with contextlib.suppress(KeyboardInterrupt):
        reflector.run()
    reflector.close()


@fabric.command(
    epilog="\b\nExamples:\n  mfsctl fabric probe decode-7\n  mfsctl fabric probe 10.1.0.7 --no-load --json\n"
)
@click.argument("peer")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=PORT,
    show_default=True,
    help="Port of `mfsctl fabric serve` on the peer.",
)
@click.option("--load/--no-load", default=True, show_default=True, help="Also fill the path, two classes at a time.")
@click.option(
    "--seconds",
    type=Seconds(0.05, 3600),
    default=0.5,
    show_default=True,
    help="Least time for which each pair of classes competes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@policy_options
@fail_clearly
def probe(
    peer: str, port: int, load: bool, seconds: float, as_json: bool, policy: str, policy_file: Path | None
) -> None:
    """Test the path to PEER, which runs `mfsctl fabric serve`.

    DSCP: every value of the policy is sent there and back; a value that changes on the way is bleached, and
    routers that answer traceroute show where. Separation: neighbouring classes compete for about two
    seconds a pair, which fills the path; --no-load skips this test. Both flows leave this host, so the test
    includes its own NIC. Exits with 1 if a DSCP is bleached or two classes are not kept apart.
    """
    profile = load_profile(policy, policy_file)
    try:
        address = (socket.gethostbyname(peer), port)
    except OSError as error:
        raise click.ClickException(f"{peer}: {error.strerror}; name a host, or give its IPv4 address") from error
    dscps = [probe_dscp(address, d) for d in sorted({c.dscp for c in profile.classes} | set(profile.control.dscp))]
    if all(r.forward is None for r in dscps):
        raise click.ClickException(f"{peer}: no answer on UDP port {port}; run `mfsctl fabric serve` there")
    pairs = probe_pairs(address, profile, seconds) if load else []
    if as_json:
        print_json(
            {
                "peer": address[0],
                "dscp": [
                    {"dscp": r.dscp, "arrived": r.forward, "came_back": r.back, "changed_at": r.changed_at}
                    for r in dscps
                ],
                "pairs": [{"verdict": r.verdict, "result": r} for r in pairs],
            }
        )
    else:
        report(profile, dscps, pairs)
    sys.exit(0 if all(r.kept for r in dscps) and all(r.verdict != "not apart" for r in pairs) else 1)


def probe_pairs(peer: tuple[str, int], profile: Profile, seconds: float) -> list[PairResult]:
    """Tests neighbouring classes. The share that the policy guarantees to the lower class is not counted against the
    path."""
    results = []
    for higher, lower in itertools.pairwise(profile.classes):
        owed = lower.floor_percent
        if higher.scheduling == "dwrr":
            owed = 100 * lower.weight_percent // (higher.weight_percent + lower.weight_percent)
        results.append(probe_pair(peer, higher.dscp, lower.dscp, 1 - owed / 100, seconds))
    return results


def report(profile: Profile, dscps: list[DscpResult], pairs: list[PairResult]) -> None:
    for r in dscps:
        if r.forward is None:
            click.echo(f"DSCP {r.dscp:2}  lost: no answer")
        elif r.kept:
            click.echo(f"DSCP {r.dscp:2}  kept" + ("" if r.back == r.dscp else f"; on the way back it became {r.back}"))
        else:
            click.echo(f"DSCP {r.dscp:2}  bleached: arrives as {r.forward}; {r.changed_at}")
    names = {c.dscp: c.name for c in profile.classes}
    for p in pairs:
        click.echo(
            f"{names[p.higher]} over {names[p.lower]}: {p.verdict}; "
            f"{p.share_of_higher:.1%} of {p.together_bytes_per_s * 8 / 1e9:.2f} Gbit/s, wanted "
            f"{p.expected_share:.0%}"
        )
