"""Completes values in a shell: profiles, interfaces, nodes, requests, tasks. If values cannot be found, it silently
completes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mfsd.node.control import Reply, Request

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
ANSWER_S = 1.0
SHOWN = 200


def _quiet(values: Callable[[click.Context], Iterable[str]]) -> Complete:
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        try:
            return [value for value in values(context) if value.startswith(incomplete)][:SHOWN]
        except Exception:  # an error message would appear in the middle of the command line
            return []

    return complete


def _profiles(context: click.Context) -> Iterable[str]:
    from mfsd.fabric.policy import load_profiles

    return load_profiles(context.params.get("policy_file"))


def _interfaces(_context: click.Context) -> Iterable[str]:
    return sorted(entry.name for entry in Path("/sys/class/net").iterdir())


def _playground_nodes(_context: click.Context) -> Iterable[str]:
    from mfsd.playground.state import running

    return [node.name for node in running().nodes]


def _ask(context: click.Context, request: Request) -> Reply:
    from mfsd.node.address import control_beside
    from mfsd.node.control_client import ask, default_control

    root = context.find_root().params
    named = context.params.get("own_socket") or root.get("socket_path")
    control = root.get("control") or (control_beside(Path(named)) if named else default_control())
    return ask(Path(control), request, ANSWER_S)


def _requests(context: click.Context) -> Iterable[str]:
    from mfsd.node.control import RequestsReply, RequestsRequest

    reply = _ask(context, RequestsRequest(layers=False, limit=SHOWN))
    return [str(r.request_id) for r in reply.requests] if isinstance(reply, RequestsReply) else []


def _tasks(context: click.Context) -> Iterable[str]:
    from mfsd.node.control import TraceReply, TraceRequest

    reply = _ask(context, TraceRequest(SHOWN))
    return [task.id for task in reply.tasks] if isinstance(reply, TraceReply) else []


def _nics(context: click.Context) -> Iterable[str]:
    from mfsd.node.control import StatusReply, StatusRequest

    reply = _ask(context, StatusRequest())
    return [nic.name for nic in reply.nics] if isinstance(reply, StatusReply) else []


profiles = _quiet(_profiles)
interfaces = _quiet(_interfaces)
playground_nodes = _quiet(_playground_nodes)
requests = _quiet(_requests)
tasks = _quiet(_tasks)
nics = _quiet(_nics)
