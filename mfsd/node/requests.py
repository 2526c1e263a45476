"""Requests as this node sees them: what each has moved by stage and layer, and which met their deadlines.

The arbiter keeps an account for each process and request (csrc/arbiter/ledger.c). This module puts the accounts of a
request together, and passes ends of requests on to the listeners: coordinator, span exporter.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from mfsd._native import LEDGER_LAYER_REST, Account, AccountCell, Finished, Verdict
from mfsd.node.control import DeadlineStatus, RequestsReply, RequestsRequest, RequestStatus, StageBytes
from mfsd.node.status import STAGES
from mfsd.policy.attainment import Attainment

if TYPE_CHECKING:
    from mfsd._native import LedgerTotals

REQUESTS_MAX = 4_096
ROWS_MAX = 16_384
"""Pairs of stage and layer in one reply, which must fit a line."""
LATEST_NS = 20_000_000_000
"""About as long as an operator watches after a change."""
NAMES_MAX = 1_024
"""Clients whose names are remembered, since accounts outlive their processes."""


class Ledger(Protocol):
    """The part of the arbiter that this module needs."""

    def accounts(self, request_id: int = 0) -> list[Account]: ...
    def finished(self) -> list[Finished]: ...
    def ledger_totals(self) -> LedgerTotals: ...


class Client(NamedTuple):
    process: str
    unit: str


class Ended(NamedTuple):
    """A request that has ended in one process."""

    request: Finished
    client: Client
    account: Account | None
    """None: it was dropped to make room."""


class Requests:
    """This node's requests. Owned by the daemon's loop."""

    def __init__(
        self,
        ledger: Ledger,
        look_up: Callable[[int], Client | None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`look_up` returns an attached client by its id."""
        self._ledger = ledger
        self._look_up = look_up
        self._clock_ns = clock_ns
        self.gone: OrderedDict[int, Client] = OrderedDict()
        """The latest clients that ended."""
        self._attainment = Attainment()
        self._latest = Attainment(LATEST_NS)
        self.ends: Counter[str] = Counter()
        """Ends by outcome, one for each process and batch."""
        self.verdict: Callable[[int, bool], None] | None = None
        """Called for each request that met or missed its deadline."""
        self.ended: Callable[[Ended], None] | None = None
        """Called for each end."""

    def client_gone(self, client_id: int, client: Client) -> None:
        """Remembers the client's name."""
        self.gone[client_id] = client
        while len(self.gone) > NAMES_MAX:
            self.gone.popitem(last=False)

    def noticed(self) -> None:
        """Takes ends of requests after the arbiter has rung."""
        for finished in self._ledger.finished():
            self._end(finished)

    def deadlines(self) -> DeadlineStatus:
        now_ns = self._clock_ns()
        latest = self._latest.counts(now_ns)
        return DeadlineStatus(
            *self._attainment.counts(now_ns),
            window_s=self._attainment.window_ns / 1e9,
            latest_met=latest.recent_met,
            latest_missed=latest.recent_missed,
            latest_s=LATEST_NS / 1e9,
        )

    def accounts(self, request_id: int) -> list[Account]:
        """One account for each process that has named the request."""
        return self._ledger.accounts(request_id)

    def reply(self, request: RequestsRequest) -> RequestsReply:
        """Answers mfsctl."""
        now_ns = self._clock_ns()
        parts: defaultdict[int, list[Account]] = defaultdict(list)
        for account in self._ledger.accounts(request.request_id):
            parts[account.request_id].append(account)
        latest = sorted(parts.values(), key=lambda accounts: max(map(_used_ns, accounts)), reverse=True)
        shown: list[RequestStatus] = []
        rows = 0
        for accounts in latest[: min(max(0, request.limit), REQUESTS_MAX)]:
            status = self._status(accounts, request.layers, now_ns)
            rows += len(status.stages)
            if rows > ROWS_MAX:
                break
            shown.append(status)
        totals = self._ledger.ledger_totals()
        return RequestsReply(shown, len(latest), totals["evicted"], totals["unaccounted"])

    # ---- inside ----------------------------------------------------------------------------------

    def _client(self, client_id: int) -> Client:
        return self._look_up(client_id) or self.gone.get(client_id) or Client(f"client {client_id}", "")

    def _end(self, finished: Finished) -> None:
        self.ends[finished.verdict.name.lower()] += 1
        if finished.verdict != Verdict.NONE:
            met = finished.verdict == Verdict.MET
            for attainment in (self._attainment, self._latest):
                attainment.judge(finished.request_id, met, self._clock_ns())
            if self.verdict is not None:
                self.verdict(finished.request_id, met)
        if self.ended is not None:
            accounts = self._ledger.accounts(finished.request_id)
            account = next((a for a in accounts if a.client_id == finished.client_id), None)
            self.ended(Ended(finished, self._client(finished.client_id), account))

    def _status(self, accounts: Sequence[Account], layers: bool, now_ns: int) -> RequestStatus:
        clients = [self._client(a.client_id) for a in accounts]
        deadline_ns = min((a.deadline_ns for a in accounts if a.deadline_ns), default=None)
        stages = _stages([cell for a in accounts for cell in a.cells], layers, now_ns)
        return RequestStatus(
            request_id=accounts[0].request_id,
            batch_id=next((a.batch_id for a in accounts if a.batch_id), None),
            unit=next((c.unit for c in clients if c.unit), ""),
            processes=sorted({c.process for c in clients}),
            state=_state(accounts),
            age_s=(now_ns - min(a.begin_ns for a in accounts)) / 1e9,
            deadline_left_s=None if deadline_ns is None else (deadline_ns - now_ns) / 1e9,
            outcome=_outcome(accounts),
            pruned=any(a.pruned for a in accounts),
            open_tasks=sum(a.open for a in accounts),
            submitted_bytes=sum(s.submitted_bytes for s in stages),
            completed_bytes=sum(s.completed_bytes for s in stages),
            bypassed_bytes=sum(s.bypassed_bytes for s in stages),
            dropped_bytes=sum(s.dropped_bytes for s in stages),
            stages=stages,
        )


def _used_ns(account: Account) -> int:
    return max(
        account.begin_ns, account.end_ns, account.done_ns, *(c.first_ns for c in account.cells), account.begin_ns
    )


def _state(accounts: Sequence[Account]) -> Literal["open", "ended", "named"]:
    announced = [a for a in accounts if a.announced]
    if not announced:
        return "named"
    return "ended" if all(a.end_ns and not a.open for a in announced) else "open"


def _outcome(accounts: Sequence[Account]) -> Literal["met", "missed"] | None:
    if any(a.verdict == Verdict.MISSED for a in accounts):
        return "missed"
    return "met" if _state(accounts) == "ended" and any(a.verdict == Verdict.MET for a in accounts) else None


def _stages(cells: Sequence[AccountCell], layers: bool, now_ns: int) -> list[StageBytes]:
    rows: defaultdict[tuple[int, int], list[AccountCell]] = defaultdict(list)
    for cell in cells:
        rows[cell.stage, cell.layer if layers else LEDGER_LAYER_REST].append(cell)
    return [
        StageBytes(
            STAGES[stage] if stage < len(STAGES) else str(stage),
            None if layer == LEDGER_LAYER_REST else layer,
            sum(c.tasks for c in row),
            sum(c.submitted_bytes for c in row),
            sum(c.completed_bytes for c in row),
            sum(c.bypassed_bytes for c in row),
            sum(c.dropped_bytes for c in row),
            _ago_s(min((c.first_ns for c in row if c.first_ns), default=0), now_ns),
            _ago_s(max(c.last_ns for c in row), now_ns),
        )
        for (stage, layer), row in sorted(rows.items())
    ]


def _ago_s(at_ns: int, now_ns: int) -> float | None:
    return (now_ns - at_ns) / 1e9 if at_ns else None
