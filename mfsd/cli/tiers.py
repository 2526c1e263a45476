"""Requests by tier, as the coordinator's page and `mfsctl cluster` show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from mfsd.proto import mfs_pb2 as pb


class TierLine(Struct, frozen=True, kw_only=True):
    """One tier, at one node or at all of them. Ended requests are counted since their engines started."""

    tier: str
    in_time: float | None
    """Share of those with a deadline that have ended; None: none has."""
    met: int
    late: int
    no_deadline: int
    aborted: int
    waiting: int
    running: int
    paused: int
    relegated: int
    lost: int
    engines: int
    policies: dict[str, int]
    """Number of engines by the policy that orders their requests."""


def tier_line(row: pb.RequestTier) -> TierLine:
    ended = row.met + row.late
    return TierLine(
        tier=row.name,
        in_time=row.met / ended if ended else None,
        met=row.met,
        late=row.late,
        no_deadline=row.no_deadline,
        aborted=row.aborted,
        waiting=row.waiting,
        running=row.running,
        paused=row.paused,
        relegated=row.relegated,
        lost=row.lost,
        engines=row.engines,
        policies=dict(row.policies),
    )


def policies_text(policies: Mapping[str, int]) -> str:
    """Returns their names, with the number of engines if there are several policies."""
    names = sorted(policies)
    return ", ".join(names if len(names) < 2 else (f"{name} {policies[name]}" for name in names))


def unreadable(nodes: Iterable[pb.Node]) -> Iterable[tuple[str, str]]:
    """Yields nodes with status files that their daemons cannot read, and a sentence about them."""
    for node in nodes:
        if number := node.tiers.unreadable:
            files = "1 status file of its engines" if number == 1 else f"{number} status files of its engines"
            yield node.node, f"{files} cannot be read"
