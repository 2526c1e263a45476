"""``mfsctl playground``: runs a cluster on this machine, for experiments."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from mfsd.cli import complete
from mfsd.cli.program import EXIT_PIPE

if TYPE_CHECKING:
    from mfsd.playground.state import State

EXIT_FAILED = 1
NODES_MAX = 16


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  mfsctl playground --load                  four nodes with a load, until Ctrl-C
  mfsctl playground --nodes 6 --rate 1gbit  more and faster nodes, without a load
  mfsctl playground --json | jq -r '.nodes[].socket'
  mfsctl playground shell node1             in another terminal
  mfsctl playground exec node1 -- mfs-run -- ib_write_bw -d mfs0
  mfsctl playground exec node2 -- mfs-run -- ib_write_bw -d mfs0 10.99.0.1
""",
)
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), default=4, show_default=True, help="Number of nodes.")
@click.option(
    "--rate", default="200mbit", show_default=True, metavar="RATE", help="Rate of each node's link, for example 1gbit."
)
@click.option(
    "--load",
    is_flag=True,
    help="Let nodes prefill, store and decode generated requests: all stages, contention, some late, some pruned.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one JSON object when all parts are up.")
@click.pass_context
def playground(context: click.Context, nodes: int, rate: str, load: bool, as_json: bool) -> None:
    """Run a cluster of network namespaces on this machine, until Ctrl-C.

    Each node has an RDMA device made of TCP and a daemon; two coordinators elect a leader through etcd (one leads
    alone where etcd is not installed). No hardware, no network and no root is needed where the kernel lets users make
    namespaces. Everything vanishes at the end. Daemons are in enforce mode; programs of perftest are held, so that
    there is something to see. With --load the command prints what to try: why a request waits, and what changes
    when nodes only observe.
    """
    if context.invoked_subcommand is not None:
        return
    from mfsd.playground.cluster import RATE_LEAST_BYTES_PER_S, RATE_MOST_BYTES_PER_S, Options, find_etcd
    from mfsd.playground.front import as_json as encoded
    from mfsd.playground.front import run
    from mfsd.playground.state import PlaygroundError
    from mfsd.soft_roce.rate import parse_rate

    try:
        rate_bytes_per_s = parse_rate(rate)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--rate") from None
    if rate_bytes_per_s == 0:
        raise click.BadParameter("give a rate, for example 1gbit: daemons plan with it", param_hint="--rate")
    options = Options(nodes=nodes, rate_bytes_per_s=rate_bytes_per_s, load=load, etcd=find_etcd())
    if rate_bytes_per_s < RATE_LEAST_BYTES_PER_S or options.fastest_bytes_per_s > RATE_MOST_BYTES_PER_S:
        most = RATE_MOST_BYTES_PER_S * rate_bytes_per_s // options.fastest_bytes_per_s
        limits = f"from {RATE_LEAST_BYTES_PER_S * 8 // 10**6}mbit to {most * 8 // 10**9}gbit"
        raise click.BadParameter(f"rate {rate!r}: give one {limits}, for example 1gbit", param_hint="--rate")

    def ready(state: State) -> None:
        try:
            click.echo(encoded(state) if as_json else _welcome(state, rate, load))
        except BrokenPipeError:  # whom it is for does not read it
            sys.exit(EXIT_PIPE)
        if load and not as_json:
            from mfsd.cli.playground_report import start

            prefill = [n for n, does in zip(state.nodes, _doings(state), strict=True) if "prefill" in does]
            start([Path(node.socket) for node in prefill], click.echo)

    try:
        sys.exit(run(options, ready, _say))
    except PlaygroundError as error:
        _fail(str(error))


@playground.command(
    name="exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  mfsctl playground exec node1 -- ibv_devinfo
  mfsctl playground exec node1 -- mfs-run -- ib_write_bw -d mfs0
  mfsctl playground exec node1 -- mfsctl status
""",
)
@click.argument("node", shell_complete=complete.playground_nodes)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(node: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on a node of the running playground.

    COMMAND is in the node's network and finds the RDMA device mfs0; MFS_SOCKET names the node's daemon. Put mfs-run
    in front of programs that MFS is to schedule. The exit status is that of COMMAND.
    """
    _visit(node, command[1:] if command[0] == "--" else command)


@playground.command(epilog="\b\nExamples:\n  mfsctl playground shell node1\n")
@click.argument("node", shell_complete=complete.playground_nodes)
def shell(node: str) -> None:
    """Open a shell on a node of the running playground.

    Programs started there are in the node's network and find the RDMA device mfs0; MFS_SOCKET names the node's daemon.
    """
    _visit(node, (os.environ.get("SHELL") or "/bin/sh",))


def _visit(name: str, command: tuple[str, ...]) -> NoReturn:
    from mfsd.playground.run_on_node import run_on
    from mfsd.playground.state import PlaygroundError, running

    try:
        state = running()
        sys.exit(run_on(state, state.node(name), list(command)))
    except PlaygroundError as error:
        _fail(str(error))


def _say(text: str) -> None:
    click.echo(f"mfsctl playground: {text}", err=True)


def _fail(text: str) -> NoReturn:
    _say(text)
    sys.exit(EXIT_FAILED)


def _welcome(state: State, rate: str, load: bool) -> str:
    from mfsd.playground.load import LONG, SHORT

    first, last = state.nodes[0], state.nodes[-1]
    addresses = ",".join(c.outside for c in state.coordinators)
    width = max(len(node.socket) for node in state.nodes)
    socket = f"mfsctl --socket {first.socket}"
    count = "1 node" if len(state.nodes) == 1 else f"{len(state.nodes)} nodes"
    lines = [
        f"{count}, each with an RDMA device {first.device} and a daemon; links of {rate}; "
        + (
            "two coordinators with etcd."
            if state.etcd
            else "one coordinator (no etcd found: install etcd-server for two)."
        ),
        "",
        f"NODE    {'DOES':<16}  {'ADDRESS':<11}  SOCKET" if load else f"NODE    {'ADDRESS':<11}  {'SOCKET':<{width}}",
        *(
            f"{node.name:<7} {does:<16}  {node.address:<11}  {node.socket}"
            if load
            else f"{node.name:<7} {node.address:<11}  {node.socket}"
            for node, does in zip(state.nodes, _doings(state), strict=True)
        ),
        "",
        "Try, in another terminal:",
        f"  {socket} status",
        f"  {socket} top",
        f"  mfsctl coordinator status --address {addresses}",
        *(f"  {c.page}" for c in state.coordinators),
    ]
    if load:
        lines += [
            "",
            "What waits, and why:",
            f"  {socket} trace",
            f"  {socket} explain --slowest",
            f"  {socket} flows -f --slow 300ms",
            "",
            f"Every 10 s a line here says how many requests were in time: short ones have {SHORT.deadline_s:g} s, "
            f"long ones {LONG.deadline_s:g} s.",
            "Let nothing wait on the prefill nodes, watch this share fall, and let requests wait again:",
            *(
                f"  mfsctl --socket {n.socket} mode observe"
                for n, d in zip(state.nodes, _doings(state), strict=True)
                if "prefill" in d
            ),
            f"  mfsctl cluster --address {addresses}",
            "",
            "Kill a daemon: requests go on, and the daemon comes back:",
            f"  kill -9 $({socket} status | sed -n 's/.* pid \\([0-9]*\\).*/\\1/p')",
        ]
    lines += [
        "",
        "Programs of your own:",
        f"  mfsctl playground shell {first.name}",
        f"  mfsctl playground exec {first.name} -- mfs-run -- ib_write_bw -d {first.device}",
        f"  mfsctl playground exec {last.name} -- mfs-run -- ib_write_bw -d {last.device} {first.address}",
        "",
        "Ctrl-C ends everything." if load else "Nothing is sent yet: see --load. Ctrl-C ends everything.",
    ]
    return "\n".join(lines)


def _doings(state: State) -> list[str]:
    """Returns what each node does under the load."""
    from mfsd.playground.load import roles

    place = roles([node.address for node in state.nodes])
    return [
        ", ".join(
            name
            for name, there in (("prefill", place.prefill), ("store", [place.store]), ("decode", [place.decode]))
            if node.address in there
        )
        for node in state.nodes
    ]
