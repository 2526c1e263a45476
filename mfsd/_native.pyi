"""The one binding of MFS's native core (`csrc/`).

Times are nanoseconds of CLOCK_MONOTONIC of this host, sizes bytes, rates bytes per second. Native errors -errno are
raised as OSError with that errno. Layouts of shared memory and of socket messages live in `csrc/include/mfs/abi.h`
alone; Python encodes and decodes them here and never repeats them.
"""

import builtins
from collections.abc import Callable, Collection, Iterable, Sequence, Sized
from contextvars import ContextVar
from enum import IntEnum, IntFlag
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypedDict

from mfsd.policy.config import PolicyConfig
from mfsd.policy.result import Batch, Plan, Pruned
from mfsd.transfer import Transfer

# ---- ABI -------------------------------------------------------------------------------------------------------------

ABI_MAGIC: Final[int]
ABI_MAJOR: Final[int]
ABI_MINOR: Final[int]
NICS_MAX: Final[int]
NICS_FIRST: Final[int]
"""Of these, what a program or daemon below NICS_MINOR knows."""
NICS_MINOR: Final[int]
CLIENTS_MAX: Final[int]
CLASSES_MAX: Final[int]
TASKS_MAX: Final[int]
BATCHES_MAX: Final[int]
REQUESTS_MAX: Final[int]
DEMANDS_MAX: Final[int]
REQUEST_DEMANDS_MAX: Final[int]
REQUEST_BYTES: Final[int]
DEMAND_BYTES: Final[int]
BATCH_BYTES: Final[int]
RANK_NONE: Final[int]
RULES_MAX: Final[int]
STAGES_MAX: Final[int]
DSCP_KEEP: Final[int]
OUTLOOK_FARS_MAX: Final[int]
OUTLOOK_PRUNED_MAX: Final[int]
OUTLOOK_MINOR: Final[int]
"""The first minor version of the ABI that has the outlook page."""
LEVELS_MAX: Final[int]
QUARANTINE_MAX: Final[int]
SUBMIT_RINGS: Final[int]
SUBMIT_SHARED: Final[int]
SUBMIT_SLOTS: Final[int]
SUBMIT_RING_BYTES: Final[int]
GRANT_SLOTS: Final[int]
MESSAGE_BYTES: Final[int]
SUBMIT_SLOT_BYTES: Final[int]
USAGE_BYTES: Final[int]
SEGMENT_BYTES: Final[int]
HELLO_BYTES: Final[int]
WELCOME_BYTES: Final[int]
NIC_REPLY_BYTES: Final[int]
LAYOUT: Final[dict[str, int]]
"""Offsets in the segment by dotted name ("header.magic", "submit.tail", "submit_slot", ...), for tests and doctor."""

class Stage(IntEnum):
    CONTROL = 0
    REUSE = 1
    COLLECTIVE = 2
    P2D = 3
    BACKGROUND = 4

class Role(IntEnum):
    UNKNOWN = 0
    NCCL_DATA = 1
    NCCL_CTS = 2
    NCCL_FLUSH = 3
    KV = 4
    BULK = 5

class Mode(IntEnum):
    OFF = 0
    OBSERVE = 1
    ENFORCE = 2

class SegmentState(IntEnum):
    ACTIVE = 1
    DETACHED = 2

class RuleAction(IntEnum):
    PASS = 0
    HOLD = 1

class HelloKind(IntEnum):
    ATTACH = 1
    NIC = 2

class MessageKind(IntEnum):
    SUBMIT = 1
    COMPLETE = 2
    CANCEL = 3
    BATCH = 4
    REQUEST = 5

class RequestFlag(IntFlag):
    """What the engine knows of a request beside its deadline."""

    RELEGATED = 1
    SPECULATIVE = 2
    SWAP = 4
    WAITING = 8
    """It still queues at its engine."""

class Judgement(IntFlag):
    """What the daemon thinks of a request."""

    PRUNED = 1

class Direction(IntEnum):
    """Of a demand, as seen from this node."""

    OUT = 0
    IN = 1

class Variant(IntEnum):
    MFS = 0
    PAPER = 1

class EarlyOrder(IntEnum):
    RANK = 0
    COLLECTIVE_FIRST = 1
    SHORTEST = 2

class Tier(IntEnum):
    CRITICAL = 0
    EARLY = 1
    LAST = 2
    SCAVENGER = 3

class TaskFlag(IntFlag):
    BYPASSED = 1

# ---- socket messages: SOCK_SEQPACKET, one message a packet -----------------------------------------------------------

class Hello(NamedTuple):
    magic: int
    major: int
    minor: int
    kind: int
    pid: int
    mode: int
    process: str
    nic_name: str
    nic_guid: int
    nic_rate_bytes_per_s: int

class Welcome(NamedTuple):
    magic: int
    major: int
    minor: int
    error: int
    """0 or -errno."""
    segment_bytes: int
    client_id: int
    reason: str

class NicReply(NamedTuple):
    magic: int
    error: int
    nic: int

def hello_encode(
    kind: int,
    *,
    pid: int = 0,
    mode: int = 2,
    process: str = "",
    nic_name: str = "",
    nic_guid: int = 0,
    nic_rate_bytes_per_s: int = 0,
    magic: int = ...,
    major: int = ...,
    minor: int = ...,
) -> bytes: ...
def hello_decode(data: bytes) -> Hello:
    """ValueError when the length is not HELLO_BYTES or the magic differs. The version is for the caller to judge with
    `hello_version_error`; names are cut at the first NUL, bytes that are not UTF-8 are replaced."""

def hello_version_error(hello: Hello) -> str | None:
    """Why this daemon cannot serve that client, one line for people; None when it can: of two minor versions both ends
    do without what the older one does not know."""

def welcome_encode(
    *,
    error: int = 0,
    client_id: int = 0,
    reason: str = "",
    major: int = ...,
    minor: int = ...,
    segment_bytes: int = ...,
) -> bytes: ...
def welcome_decode(data: bytes) -> Welcome: ...
def nic_reply_encode(*, error: int = 0, nic: int = 0) -> bytes: ...
def nic_reply_decode(data: bytes) -> NicReply: ...

# ---- arbiter ---------------------------------------------------------------------------------------------------------

class Rule(NamedTuple):
    """How clients tell queue pairs apart; the first rule that matches wins (struct mfs_rule)."""

    library: str = ""
    """Part of the file name of the object that created the queue pair; at most 31 bytes."""
    process: str = ""
    """Part of the program's name; at most 31 bytes."""
    peer: bytes = b""
    """GID prefix of the remote end, up to 16 bytes; IPv4 as ::ffff:a.b.c.d."""
    peer_prefix_bits: int = 0
    role: int = 0
    """Role that must have been found by capabilities; 0: any."""
    action: int = 0
    stage: int = 0
    dscp: int = 255
    """0..63, or DSCP_KEEP."""
    set_role: int = 0
    communicator: str = ""
    """Part of the name of NCCL's communicator; at most 31 bytes."""

THRESHOLD_TOP: Final[float]
THRESHOLD_BASE: Final[float]
LOAD_TIME_CONSTANT_NS: Final[int]
NO_DEADLINE: Final[int]
"""A deadline that never comes (ns). It sorts after every real one."""
RENEWAL_BUDGETS: Final[int]
"""Variant mfs: how many budgets after its deadline a lost request is due again."""
SIZE_NONE: Final[int]
"""The size class of what belongs to a batch that does not run: after all that does, and after what has no batch."""
LATE_SIZES: Final[int]
"""How many size classes larger a load without a batch counts that comes too late: four times the bytes."""

class Parameter(NamedTuple):
    default: Any
    """int or float, as its least and most are."""
    least: Any
    most: Any

POLICY_PARAMETERS: Final[dict[str, Parameter]]
"""MFS_POLICY_PARAMETERS (mfs/policy.h), by name."""

class Policy:
    """struct mfs_policy: a named tuple of POLICY_PARAMETERS, all of which have their defaults (for the most classes
    there can be), and `threshold`: levels - 1 falling numbers; empty: THRESHOLD_TOP / THRESHOLD_BASE^(i-1)."""

    def __init__(self, *, threshold: tuple[float, ...] = (), **parameters: float) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def _replace(self, **changes: Any) -> Policy: ...

class Decision(NamedTuple):
    """What is decided about a request's last stage, until it is evaluated again (struct mfs_decision)."""

    level: int
    """Variant paper: the smaller the more urgent. Variant mfs has none: 0."""
    critical: bool = False
    infeasible: bool = False

class OrderReasons(NamedTuple):
    """What decided about a last stage that has a deadline (struct mfs_reasons)."""

    laxity_ns: int
    """Time to spare were the port its own; negative: it cannot make it."""
    guard_ns: int
    """Variant mfs: class 0 opens below this laxity."""
    due_ns: int
    """By what it is sorted in its tier."""
    effective_rate_bytes_per_s: int
    """Variant paper: what load leaves of the port."""
    level_ns: int | None
    """Variant paper: when it reaches the next level if nothing of it is served."""

class OrderPlace(NamedTuple):
    """Where a flow stands (struct mfs_place)."""

    key: tuple[int, int, int, int, int]
    """(tier, first, second, third, sequence): the smallest goes first. Early: RLI, size class << 32 | rank (or rank),
    stage. Last: level (0 without levels), when it is due. Scavenger: 0, deadline. NO_DEADLINE: never."""
    tier: int
    """A critical request's key may be among those of the early tier."""
    wire_class: int
    late: bool
    """Reuse without a batch that cannot be there in time, and so counts as larger."""

class OrderFacts(Protocol):
    """What the rules have to know of a flow; mfsd.policy.Flow is one, and says what each means."""

    @property
    def stage(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def remaining_bytes(self) -> int: ...
    @property
    def rate_bytes_per_s(self) -> int: ...
    @property
    def layer_target(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def deadline_ns(self) -> int: ...
    @property
    def budget_ns(self) -> int: ...
    @property
    def compute_end_ns(self) -> int: ...
    @property
    def tail_bytes(self) -> int: ...
    @property
    def without_batch(self) -> bool: ...
    @property
    def whole_bytes(self) -> int | None: ...
    @property
    def request_known(self) -> bool: ...
    @property
    def batch_running(self) -> bool: ...
    @property
    def pruned(self) -> bool: ...

class OrderRules:
    """The rules of one NIC (mfs/policy.h) for callers that have no queue: the very functions that the queue calls.
    Times are ns on one clock, from 0. ValueError and OSError: a policy out of range."""

    def __init__(self, policy: Policy = ...) -> None: ...
    @property
    def by_size(self) -> bool:
        """Early flows of equal RLI go by the size of what their batch waits for, and critical requests among them."""

    def first(self) -> Decision:
        """Of a request that has not been evaluated."""

    def evaluate(
        self, flow: OrderFacts, last: Decision, now_ns: int, rho: float = 0.0, unit_slack_ns: int | None = None
    ) -> tuple[Decision, int | None]:
        """The decision about a last stage now, and when to evaluate it again though nothing happens (None: only an
        event can change it). unit_slack_ns None: no unit is busy whose early stages would wait."""

    def reasons(self, flow: OrderFacts, decision: Decision, now_ns: int, rho: float = 0.0) -> OrderReasons: ...
    def place(self, flow: OrderFacts, decision: Decision, now_ns: int, layer_current: int = 0) -> OrderPlace:
        """`decision` counts for last stages."""

class ArbiterStats(TypedDict):
    loops: int
    wakeups: int
    messages: int
    grants: int
    cpu_ns: int
    waiting_tasks: int
    clients: int
    nics: int

class NicStats(TypedDict):
    name: str
    guid: int
    rate_bytes_per_s: int
    window_bytes: int
    """Of either direction."""
    in_flight_bytes: list[int]
    """By direction: going out, coming in."""
    unscheduled_in_flight_bytes: int
    held_bytes: list[int]
    """By class, as the next four lists."""
    held_tasks: list[int]
    in_flight_class_bytes: list[int]
    granted_bytes: list[int]
    grants: list[int]
    promotions: int
    wait_ns: int
    load: list[float] | None
    """rho by direction; None: the policy has no levels, so it is not measured."""
    carried_bytes: list[list[int]]
    """Completed by tasks since start, by direction and class."""
    unscheduled_carried_bytes: int
    """Completed by stages that never wait, in both directions."""
    passed_bytes: int
    """Completed in the other stages without a permit."""
    used: list[float]
    """By direction: moving average of the share of the rate that was really taken."""

class ClientStats(TypedDict):
    client_id: int
    state: int
    detach_reason: int
    submits: int
    grants: int
    taken: int
    """Of the grants: on credit, without asking."""
    completes: int
    cancels: int
    torn_slots: int
    bad_messages: int
    held_bytes: int
    in_flight_bytes: int
    posted_bytes: list[int]
    """By stage, as the next."""
    completed_bytes: list[int]
    collective_bytes: list[int]
    """Completed in stage 2, by NIC."""
    queue_pairs: list[int]
    """By role."""
    report_held_bytes: int
    report_permits: int
    bypassed_overflow: int
    bypassed_hold: int
    bypassed_stale: int
    hold_ns: int

class CommunicatorSnapshot(NamedTuple):
    """What a client's NCCL profiler plugin says of a communicator (struct mfs_communicator)."""

    id: int
    name: str
    rank: int
    ranks: int
    operations: int
    operation_bytes: int
    """With which they were called."""
    work_requests: int
    batch_bytes: int
    """Of those sent, with a batch."""
    sent_bytes: list[int]
    """By operation (enum mfs_operation)."""
    batch: int | None
    """Slot of the latest send."""
    layer: int

class DemandSnapshot(NamedTuple):
    """The daemon's copy of a demand; `bytes_left` is what was announced less what was completed."""

    bytes: int
    bytes_left: int
    peer: builtins.bytes
    """GID, 16 bytes; zero: unknown."""
    layer: int
    stage: int
    nic: int
    direction: int

class RequestSnapshot(NamedTuple):
    """The daemon's copy of a request. 0: none, unknown, not announced."""

    request_id: int
    program_id: int
    deadline_ns: int
    budget_ns: int
    value: int
    flags: int
    pruned: bool
    demands: tuple[DemandSnapshot, ...]
    rank: int = 0
    """Of one that still queues, as the next."""
    tokens_left: int = 0

class BatchSnapshot(NamedTuple):
    """The daemon's copy of a batch. `compute_left_ns` is from the moment of the snapshot."""

    client_id: int
    slot: int
    batch_id: int
    deadline_ns: int
    """As the engine announced; 0: none."""
    compute_left_ns: int
    layers: int
    layer_current: int
    rank: int
    """RANK_NONE: none."""
    requests: tuple[RequestSnapshot, ...]

class TaskSnapshot(NamedTuple):
    """A task and the facts that decide its place: arbiter.h, struct mfs_task_snapshot and mfs_rmlq_snapshot."""

    task: int
    bytes: int
    submit_ns: int
    request_id: int
    batch_id: int
    deadline_ns: int
    """Told with the task; 0: none."""
    in_flight: bool
    layer: int
    stage: int
    nic: int
    direction: int
    """0: out, 1: in."""
    wire_class: int
    queued: bool
    """False: it found the queue full and what follows is empty."""
    tier: int
    rli: int
    arrival: int
    rank: int
    batch_announced: bool
    batch_pruned: bool
    compute_end_ns: int
    request_deadline_ns: int
    budget_ns: int
    bytes_left: int
    """Of its request, through this NIC: waiting, in flight and still to come."""
    bytes_ahead: int
    """The part of it that was announced and not submitted yet."""
    bytes_tail: int
    bytes_whole: int
    """Of a load that is fetched, and waits: all of it, by which its class goes. 0: that goes by bytes_left."""
    level: int
    critical: bool
    lost: bool
    pruned: bool

class NicFacts(NamedTuple):
    """What the queue of a NIC reckons with. `unit_slack_ns` None: no batch is under way there."""

    rate_bytes_per_s: int
    rho: float
    unit_slack_ns: int | None

class NicCounted(NamedTuple):
    """What programs with the shim have given to a NIC since the start. By direction: out, in."""

    posted_bytes: tuple[int, ...]
    unscheduled_bytes: int
    """Of these in each direction, by stages that never wait."""
    outstanding_bytes: int
    """Posted and not completed, in both directions."""
    class_bytes: tuple[tuple[int, ...], ...]
    """Completed by tasks, by class."""

EVENT_LAYOUT: int
EVENT_BYTES: int
EVENT_SLOTS_MAX: int
LEDGER_REQUESTS: int
LEDGER_REQUEST_CELLS: int
LEDGER_LAYER_REST: int
"""Layer of what is beyond LEDGER_REQUEST_CELLS pairs of stage and layer of one request."""

class Verdict(IntEnum):
    """enum mfs_verdict. NONE: no deadline, or its program ended first."""

    NONE = 0
    MET = 1
    MISSED = 2

class AccountCell(NamedTuple):
    """One stage and layer of a request: mfs/ledger.h, struct mfs_account_cell."""

    stage: int
    layer: int
    tasks: int
    submitted_bytes: int
    completed_bytes: int
    bypassed_bytes: int
    dropped_bytes: int
    first_ns: int
    last_ns: int
    """0: nothing is complete."""

class Account(NamedTuple):
    """What one process has moved for a request: mfs/ledger.h, struct mfs_account. 0: none, not yet."""

    request_id: int
    client_id: int
    batch_id: int
    begin_ns: int
    end_ns: int
    done_ns: int
    deadline_ns: int
    open: int
    announced: bool
    pruned: bool
    verdict: Verdict
    cells: tuple[AccountCell, ...]

class Finished(NamedTuple):
    """An announced request that has ended: mfs/ledger.h, struct mfs_finished."""

    request_id: int
    client_id: int
    batch_id: int
    begin_ns: int
    end_ns: int
    done_ns: int
    deadline_ns: int
    size_bytes: int
    verdict: Verdict
    pruned: bool

class LedgerTotals(TypedDict):
    evicted: int
    unaccounted: int
    unreported: int
    requests: int
    cells: int

class Arbiter:
    """The daemon's native thread. Control calls may come from any Python thread, one at a time; they take microseconds
    and release the interpreter lock while they wait. After `close` they raise OSError(ESHUTDOWN)."""

    def __init__(
        self,
        *,
        epoch: int = 0,
        policy: Policy = ...,
        mode: int = 2,
        heartbeat_ns: int = 10_000_000,
        stale_after_ns: int = 40_000_000,
        max_hold_ns: int = 10_000_000_000,
        window_ns: int = 200_000,
        window_bytes_min: int = 131_072,
        quiet_ns: int = 200_000,
        gate_max_ns: int = 2_000_000,
        spin_ns: int = 50_000,
        torn_slot_ns: int = 10_000_000,
        load_time_constant_ns: int = LOAD_TIME_CONSTANT_NS,
        rate_default_bytes_per_s: int = 12_500_000_000,
        tasks_max: int = 262_144,
        cpus: Iterable[int] = (),
    ) -> None:
        """epoch 0: taken from the clock, so every start differs. ValueError names the field that is out of range."""

    @property
    def epoch(self) -> int: ...
    def start(self) -> None: ...
    def close(self) -> None:
        """Stops the thread; clients see state DETACHED and pass through. May be called twice."""

    def __enter__(self) -> Arbiter: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def client_add(self) -> tuple[int, int, int]:
        """(client id, memfd, doorbell eventfd); the caller sends both descriptors with the welcome and closes them.
        EUSERS: CLIENTS_MAX reached; ENOSPC: no memory for a segment."""

    def client_remove(self, client_id: int) -> None:
        """ENOENT: no such client."""

    def nic(self, name: str, guid: int = 0, rate_bytes_per_s: int = 0) -> int:
        """Index of the NIC, added when new; a rate of 0 keeps what is known. ENOSPC: NICS_MAX reached."""

    def rules(self, rules: Sequence[Rule]) -> None:
        """Replaces the rules of all clients, present and future."""

    def mode(self, mode: int) -> None: ...
    def wire(self, dscp: Sequence[int]) -> None:
        """DSCP of class 0, 1, ... given to all clients, present and future; classes beyond the list have none."""

    def batch_rank(self, client_id: int, batch_id: int, rank: int) -> None:
        """ENOENT: the client has no such batch."""

    def request_prune(self, client_id: int, request_id: int, pruned: bool) -> None:
        """Whether the request is served from the scavenger. ENOENT: the client has announced no such request."""

    def waiting(self) -> list[tuple[int, tuple[RequestSnapshot, ...]]]:
        """Clients whose requests that still queue (RequestFlag.WAITING) have changed since the last call, each with all
        that it has now. `notice_fd` rings for them too."""

    def outlook_fd(self) -> int | None:
        """A descriptor of the outlook page for a client, to be closed. None: this kernel cannot seal one."""

    def outlook(
        self,
        fars: Sequence[tuple[bytes, int, int, int | None]],
        pruned: Collection[int],
        far_valid_until_ns: int,
        pruned_valid_until_ns: int,
    ) -> None:
        """Replaces what the page says of far ports (GID, direction of the flows, rate, time owed there) and of pruned
        requests, and until when. ValueError: more than OUTLOOK_FARS_MAX or OUTLOOK_PRUNED_MAX."""

    def notice_fd(self) -> int:
        """An eventfd that is readable once contexts have changed; read it, then call `changed`. Not to be closed."""

    def changed(self) -> list[tuple[int, int, BatchSnapshot | None]]:
        """Client id and slot of the batches that arrived, changed or ended since the last call, and each as it is now:
        None when no batch is there any more."""

    def batch_snapshot(self, client_id: int, slot: int) -> BatchSnapshot | None:
        """None: no batch is there (any more)."""

    def tasks(self, client_id: int) -> list[TaskSnapshot]:
        """The client's tasks that wait or are in flight. ENOENT: no such client."""

    def facts(self, nic: int, direction: int) -> NicFacts:
        """What the queue of one direction (0: out, 1: in) reckons with. ENOENT: no such NIC or direction."""

    def accounts(self, request_id: int = 0) -> list[Account]:
        """What requests have moved; of one of them, or (0) of all in the table."""

    def finished(self) -> list[Finished]:
        """Announced requests that have ended since the last call, each once for every process that announced it.
        `notice_fd` is readable when there are some."""

    def ledger_totals(self) -> LedgerTotals: ...
    def opened(self) -> dict[str, int]:
        """How often it failed open since it started: `queue_full` and `bypass` count tasks, `given_up` and
        `written_off` clients."""

    def trace_attach(self, slots: int = 65536) -> None:
        """Writes events from now on. EBUSY: already; EINVAL: not a power of two up to EVENT_SLOTS_MAX."""

    def trace_detach(self) -> None:
        """ENOENT: not attached."""

    def trace_read(self, n: int = 4096) -> tuple[bytes, int]:
        """Up to n events of EVENT_BYTES each, oldest first, and how many were lost since the attachment. ENOENT."""

    def stats(self) -> ArbiterStats: ...
    def nic_stats(self, nic: int) -> NicStats:
        """ENOENT: no such NIC; indices are 0..stats()["nics"]-1."""

    def counted(self, nic: int) -> NicCounted:
        """ENOENT: no such NIC."""

    def bypass(self, nic: int, sent_bytes_per_s: int, received_bytes_per_s: int, valid_until_ns: int) -> None:
        """What the port carries past the programs with the shim: taken for load until then. ENOENT: no such NIC."""

    def client_stats(self, client_id: int) -> ClientStats:
        """ENOENT: no such client."""

    def communicators(self, client_id: int) -> list[CommunicatorSnapshot]:
        """NCCL's, as the client reports them. ENOENT: no such client."""

# ---- client ----------------------------------------------------------------------------------------------------------

class DemandInfo(NamedTuple):
    """Bytes of one stage and layer between a NIC of this node and a port elsewhere; `peer` is a GID or empty."""

    bytes: int
    peer: builtins.bytes = b""
    layer: int = 0
    stage: int = 3
    nic: int = 0
    direction: int = 0

class RequestInfo(NamedTuple):
    """What an engine announces of a request: client.h, struct mfs_request_info. 0: none, unknown, not announced."""

    request_id: int
    program_id: int = 0
    deadline_ns: int = 0
    budget_ns: int = 0
    value: int = 0
    flags: int = 0
    demands: tuple[DemandInfo, ...] = ()
    rank: int = 0
    """With RequestFlag.WAITING: its place in the engine's order, smaller goes first."""
    tokens_left: int = 0
    """With RequestFlag.WAITING: to compute until its first token."""

class Open(IntEnum):
    """Why a task goes without a permit: enum mfs_open."""

    OVERFLOW = 0
    HOLD = 1
    STALE = 2

def peer_hash(gid: builtins.bytes) -> int:
    """mfs_peer_hash: a number for the port of this GID (16 bytes), the same everywhere, 0 for zeros alone."""

class OutlookPort(NamedTuple):
    """One direction of a NIC of this node, of all its processes: struct mfs_port_outlook."""

    rate_bytes_per_s: int
    waiting_bytes: tuple[int, int, int, int]
    """By tier: critical, early, last, scavenger."""
    in_flight_bytes: int
    achieved_bytes_per_s: int
    """Of late, of what asks for permits."""
    unscheduled_bytes_per_s: int
    """Of late, of what never waits."""

class OutlookFar(NamedTuple):
    """A port elsewhere that flows of this node come from or go to: struct mfs_far_outlook."""

    peer: builtins.bytes
    """GID."""
    direction: int
    """Of the flows, as seen from this node."""
    rate_bytes_per_s: int
    """0: unknown."""
    owed_ns: int | None
    """That the port needs for all that is promised there. None: no coordinator says it."""
    achieved_bytes_per_s: int
    """Of this node's own flows there; 0: none."""

class OutlookPage(NamedTuple):
    """A copy of the outlook page. Times are on CLOCK_MONOTONIC."""

    epoch: int
    written_ns: int
    valid_until_ns: int
    far_valid_until_ns: int
    """0: no coordinator says anything."""
    ports: tuple[OutlookPort, ...]
    """NIC * 2 + direction."""
    fars: tuple[OutlookFar, ...]
    pruned: tuple[int, ...]

def fetch_forecast_ns(
    size_bytes: int,
    own: tuple[int, tuple[int, int, int, int], int, int, int],
    far: tuple[int, int | None, int] | None,
    tier: int,
    announced_bytes: int = 0,
    far_bytes: int | None = None,
) -> int:
    """mfs_fetch_forecast: the arithmetic of mfsd/policy/outlook.py in C. `own` as OutlookPort; `far`: rate, time owed,
    rate achieved."""

class Client:
    """A process's own session with the daemon of its node; see client.h. Methods may be called from any thread."""

    @staticmethod
    def attach(
        socket_path: str | None = None, *, process: str | None = None, mode: int = 2, timeout_ms: int = 0
    ) -> Client:
        """OSError: ENOENT/ECONNREFUSED no daemon, EPROTO version or size, EACCES refused, ETIMEDOUT, EPERM setuid; its
        strerror is a line for people. None and 0 take the defaults ($MFS_SOCKET or /run/mfs/mfsd.sock, 200 ms)."""

    @staticmethod
    def borrow(address: int) -> Client:
        """The client that another copy of the native code in this process owns and never unmaps (the shim's, api.h).
        Detach and forget then only let go of it."""

    @property
    def borrowed(self) -> bool: ...
    def detach(self) -> None: ...
    def forget(self) -> None:
        """In a child after fork, instead of `detach`: tells the daemon nothing."""

    def __enter__(self) -> Client: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def client_id(self) -> int: ...
    @property
    def minor(self) -> int:
        """The lower of this code's and the daemon's minor ABI version."""

    @property
    def epoch(self) -> int: ...
    def alive(self) -> bool: ...
    def detached(self) -> bool:
        """The daemon gave this client up, or has stopped."""

    def nic_name(self, nic: int) -> str:
        """Empty: the daemon knows no NIC of this index."""

    def hung_up(self) -> bool: ...
    def mode(self) -> int: ...
    @property
    def classes(self) -> int:
        """K: classes on the wire are 0..K-1, K-1 is the scavenger's."""

    @property
    def max_hold_ns(self) -> int: ...
    def dscp(self) -> list[int | None]:
        """DSCP of each class; None: the fabric marks none."""

    @property
    def apart(self) -> int:
        """Classes that the wire keeps apart from that of collectives, one bit each."""

    def outlook(self) -> OutlookPage | None:
        """A copy of the whole page. None, as of all calls about it: nothing is known now."""

    def outlook_port(self, nic: int, direction: int) -> OutlookPort | None: ...
    def outlook_far(self, peer: bytes, direction: int) -> OutlookFar | None: ...
    def request_pruned(self, request_id: int) -> bool | None:
        """Of any process of this node."""

    def fetch_ns(
        self,
        nic: int,
        size_bytes: int,
        peer: bytes = b"",
        deadline_ns: int = 0,
        announced_bytes: int = 0,
        far_bytes: int | None = None,
    ) -> int | None:
        """How long a fetch would take from now on. `deadline_ns` 0: nothing waits for it. `far_bytes`: through the
        owner's port, as many if not given; `announced_bytes`: of these, what is announced."""

    def gate(self, nic: int) -> int:
        """Bit mask of stages that must ask (1 << stage)."""

    def nic(self, name: str, guid: int = 0, rate_bytes_per_s: int = 0) -> int: ...
    def submit(
        self,
        size_bytes: int,
        *,
        stage: int,
        nic: int = 0,
        request_id: int = 0,
        deadline_ns: int = 0,
        batch: int | None = None,
        layer: int = 0,
        role: int = 0,
        asked: bool = False,
        class_marked: bool = False,
        incoming: bool = False,
        peer: int = 0,
        queue: int = 0,
        left_bytes: int = 0,
    ) -> int:
        """The task's id. ENOTCONN: daemon gone; EAGAIN: no slot or ring full. Both mean: post without a permit.

        `asked`: its permit is asked for by `permit` and `permit_wait` and is not among those of `permits`.
        `class_marked`: it will go out on the lane of the permitted class, so it need not wait for collectives where the
        wire has classes. `incoming`: its bytes come to this node (RDMA READ), so it waits for that direction of the
        link only. `peer`: `peer_hash` of the port that it goes to, 0: unknown; `queue`: the queue pair, 0: none.
        EINVAL: 2**40 bytes or more.
        """

    def permit(self, task_id: int) -> int | None:
        """The class of a permitted task; None while it waits. ENOENT: it has ended."""

    def permit_wait(self, task_id: int, timeout_ns: int) -> int | None:
        """The same after sleeping for it; None after timeout_ns. ENOTCONN: the daemon is gone."""

    def submit_transfer(self, transfer: Transfer, nic: int, batch: int | None, peer: int) -> int:
        """The id of a task whose permit is asked for by `permit` and `permit_wait`. `nic`, `batch` and `peer`: this
        client's numbers of what the transfer names. Errors as of `submit`."""

    def ask(
        self,
        transfer: Transfer,
        nic: int,
        batch: int | None,
        peer: int,
        timeout_ns: int,
        otherwise: int,
        /,
    ) -> Permit | None:
        """Submits and waits in one call, at most for `max_hold` and timeout_ns. What goes without a permit (its stage
        need not ask, time is up) has the class `otherwise`. None: the daemon only observes, or is gone.
        LookupError: it knows no such NIC."""

    def take(self, transfer: Transfer, nic: int, batch: int | None, peer: int, /) -> Permit | None:
        """On credit, in one call. None: there is no credit, or no daemon, and nothing was asked. Errors as of
        `submit_transfer`."""

    def permits(self, n: int = 64) -> list[tuple[int, int]]:
        """(task id, class on the wire) of permits that have arrived; empty when there are none."""

    def wait(self, timeout_ns: int) -> bool:
        """Sleeps until permits arrive; False after timeout_ns."""

    def complete(self, task_id: int) -> None: ...
    def cancel(self, task_id: int, bypassed: bool = False) -> None: ...
    def count_posted(self, nic: int, stage: int, size_bytes: int) -> None: ...
    def count_completed(self, nic: int, stage: int, size_bytes: int) -> None: ...
    def count_open(self, why: Open) -> None:
        """A task goes without a permit."""

    def batch_begin(self, batch_id: int, layers: int, deadline_ns: int = 0, compute_ns: int = 0) -> int: ...
    def batch_begin_with(
        self, batch_id: int, layers: int, requests: Sequence[RequestInfo], deadline_ns: int = 0, compute_ns: int = 0
    ) -> tuple[int, list[int]]:
        """Slots of the batch and of its requests. ENOSPC: there are too many, and nothing was begun; EINVAL: an id
        of 0, or more than REQUEST_DEMANDS_MAX demands of one request."""

    def batch_layer(self, batch: int, layer_current: int) -> None: ...
    def batch_end(self, batch: int) -> None:
        """Ends its requests too. ENOENT: it has ended already."""

    def request_begin(self, request: RequestInfo, batch: int | None = None) -> int:
        """The slot of a request that comes later than its batch, or has none. Errors as `batch_begin_with`."""

    def request_end(self, request: int) -> None:
        """ENOENT: it has ended already."""

    def request_judgement(self, request: int) -> int:
        """Flags of `Judgement`."""

    def rules(self) -> list[Rule]: ...

class Permit:
    """Permission to send one message, given by `Client.ask`. Forgotten without `complete` it is cancelled."""

    @property
    def wire_class(self) -> int:
        """The priority on the wire, 0 highest."""

    def ready(self) -> bool:
        """True. With `wait` as of `mfsd.client.Task`."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Its class."""

    def complete(self) -> None:
        """The bytes have arrived."""

    def cancel(self) -> None:
        """It is not sent."""

# ---- the adapter's fast path -----------------------------------------------------------------------------------------

class Settled:
    """What a process asks with now; its session keeps it right."""

    client: Client | None
    """None: none, or ask the attachment."""
    nics: dict[int, int]
    """The session's number of each NIC -> the daemon's."""
    open_class: int
    """Of what goes without a permit."""

    def __init__(self, open_class: int) -> None: ...

class FastPath:
    """The whole way of a call that moves one buffer to or from a peer, as one native call: what it is for, the permit,
    the lane of its class, the library's own method, the completion.

    Decisions are the owner's: `course` says what holds for the calls to a peer (the session's number of the NIC,
    whether writes and whether reads are marked with their class, by class the lane or None for the engine itself, the
    name of the port that they go to), and is asked again after `course_ns` and after `changed`. A lane is the engine
    and the peer's name there.
    """

    def __init__(
        self,
        settled: Settled,
        *,
        slot_of: Callable[[Any, Client], int | None],
        peer_of: Callable[[str], int],
        context: ContextVar[Any],
        owned: list[Sized],
        course: Callable[[str], tuple[int, bool, bool, dict[int, tuple[Any, str] | None], str] | None],
        route: Callable[[str, int, int], tuple[Any, str] | None],
        failed: Callable[[str], None],
        size_max_bytes: int,
        timeout_ns: int,
        give_up_ns: int,
        course_ns: int,
    ) -> None:
        """`slot_of` knows the slot of a batch, `peer_of` the number of a port's name; `context` holds None or (request,
        stage or None, layer, deadline_ns, batch); where one of `owned` is not empty, addresses may have owners, and
        nothing goes this way. `route` is asked for the lane of a class that the course does not know; `failed` is
        called for of a peer that a lane does not reach: the engine itself then tries once more, and its answer
        counts, unless `give_up_ns` have gone by since the call began."""

    def changed(self) -> None:
        """What `course` answers has changed."""

def one_buffer(original: Callable[..., int], otherwise: Callable[..., int], reading: bool) -> Callable[..., int]:
    """A method of a class whose instances have a FastPath or None as `_mfs_fast_path`: what
    `original(self, peer, address, peer_address, length)` answers, or raises, by that path. What is unusual (other
    arguments, a large message, an owner of addresses, no course, nothing scheduled) is left to `otherwise`."""

# ---- the fast path of transfers that are posted and asked about ------------------------------------------------------

class Unasked:
    """Transfers of native code about which only their programs ask yet, and the bell of the thread that will."""

    def __init__(self, arriving_ns: int, waiting_ns: int) -> None:
        """For how long one is its program's alone: while the network has it, and while it waits for its permit."""

    def __len__(self) -> int: ...
    def due(self) -> list[Posting]:
        """Those whose time is over. They stay until they end or are handed over."""

    def ring(self) -> None:
        """Wakes the thread."""

    def soon(self) -> None:
        """Wakes the thread, `arriving_ns` from now."""

    def wait(self, timeout_s: float) -> None:
        """Until the bell rings, or the time is over."""

    def wait_until_due(self) -> None:
        """Until the bell rings, or one is due. Takes no GIL meanwhile."""

class Posting:
    """One transfer of one message, as native code has it. Where something is unusual it becomes the Transfer that
    `transfer_of` has made of it, for good or until that has ended and is started again."""

    def __init__(self) -> None:
        """TypeError: PostedPath.posting and its agent's methods make them."""

    own: Any
    """NIXL's handle."""
    peer: str
    metadata: Any
    operation: Any
    local: Any
    local_indices: Any
    remote: Any
    remote_indices: Any
    skip_merge: Any
    notification: Any
    backends: Any
    size_bytes: int
    incoming: bool
    stage: int
    """Of what has no stage in its metadata."""

    @property
    def native(self) -> bool:
        """It was posted by native code, and not handed over."""

    @property
    def waits(self) -> bool:
        """Native code has asked for its permit."""

    def transfer(self) -> Any:
        """Hands it over; its Transfer."""

class PostedPath:
    """How transfers of one message are made, permitted, posted, asked about and released in native code, one call each.

    Nothing is decided here: what has a lane, an owner of its memory, or a failure, what waits long and what cannot be
    asked for is left to Python, before anything was done or with the permit that is there.
    """

    def __init__(
        self,
        settled: Settled,
        *,
        slot_of: Callable[[Any, Client], int | None],
        peer_of: Callable[[str], int],
        binding: Any,
        success: Any,
        in_progress: Any,
        course: Callable[[str], tuple[int, bool, bool, dict[int, None], str] | None],
        course_ns: int,
        unasked: Unasked,
        begin: Callable[[], None],
        transfer_of: Callable[[Posting, bool], Any],
        take_over: Callable[[Any, bytes, Permit | None, float, tuple[Any, Exception | None] | None], None],
        wait_on: Callable[[Any, bytes, Client, int, int, int], None],
        start_permitted: Callable[[Any, bytes, Permit], str],
        check: Callable[[Any], str],
        fail: Callable[[Any, BaseException | None], None],
        proc: Any,
    ) -> None:
        """`binding`: NIXL's agent, whose answers are `success`, `in_progress` or failures. `course` and `course_ns` are
        as of FastPath, but the classes are those that go by the program's own backend. `begin` starts the thread of
        `unasked`. The others go on in Python: `transfer_of` makes the Transfer (closed: it was released); `take_over`
        has it under way (or arrived, without a permit) since a time in seconds, with NIXL's answer if there is one;
        `wait_on` has it wait for a task of the client's since a time in nanoseconds; `start_permitted` posts it;
        `check` says how it stands; `fail` knows that NIXL has not taken it. `proc`: the `state` of a Transfer that is
        under way."""

    def makes(
        self,
        *,
        name: str,
        call: ContextVar[Any],
        context: ContextVar[Any],
        unknown: Any,
        owned: list[Sized],
        handle_class: type,
        prepared_class: type,
        scheduling: Any,
        lanes: dict[str, Any],
        copied: Callable[[Any], Any],
        reads: int,
        writes: int,
        size_max_bytes: int,
    ) -> None:
        """Has it make transfers between lists of `prepared_class` of at most that size, of agent `name` with others:
        for what `call`, `context` or else `unknown` says, with stage `reads` or `writes`. Where there are `lanes` the
        indices are `copied`, to make it again there."""

    def posting(
        self, kept: Any, own: Any, peer: str, metadata: Any, size_bytes: int, stage: int, incoming: bool
    ) -> Posting | None:
        """Of a Transfer that Python has made, with NIXL's handle. None: there can be none."""

    def changed(self) -> None:
        """What `course` answers has changed."""

def posted_make(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """NIXL's make_prepped_xfer of agents that have a PostedPath or None as `_mfs_path`; `otherwise`: the long way. Its
    handles have the Posting as `posting`, which the functions below look for."""

def posted_transfer(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """NIXL's transfer."""

def posted_check(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """NIXL's check_xfer_state."""

def posted_release(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Handles' release."""

def posted_del(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Handles' __del__."""

# ---- queue, for tests and the simulator ------------------------------------------------------------------------------

class Pick(NamedTuple):
    """struct mfs_pick."""

    handle: int
    cookie: int
    bytes: int
    rli: int
    tier: int
    level: int
    wire_class: int
    in_flight: bool
    destination: int

class RmlqStats(TypedDict):
    waiting_bytes: list[int]
    waiting_tasks: list[int]
    in_flight_bytes: int
    in_flight_tasks: int
    promotions: int
    evaluations: int
    requests: int
    batches: int

class Rmlq:
    """The reverse multi-level queue of one NIC (rmlq.h), clock passed in. One method a C function. incoming: its flows
    are fetched from other hosts' ports."""

    def __init__(
        self, rate_bytes_per_s: int, *, policy: Policy = ..., flows_max: int = 4096, incoming: bool = False
    ) -> None: ...
    def submit(
        self,
        now_ns: int,
        size_bytes: int,
        *,
        stage: int,
        request: int = 0,
        batch: int = 0,
        deadline_ns: int = 0,
        cookie: int = 0,
        layer: int = 0,
        destination: int = 0,
        left_bytes: int = 0,
    ) -> int: ...
    def peek(self, now_ns: int) -> Pick | None: ...
    def pick(self, now_ns: int) -> Pick | None: ...
    def close_destination(self, destination: int) -> None:
        """Flows to it are passed over by peek and pick until it is opened again."""

    def open_destination(self, destination: int) -> None: ...
    def place(self, handle: int) -> Pick: ...
    def complete(self, handle: int, size_bytes: int | None = None) -> bool:
        """True when the flow is done; None completes all of it."""

    def cancel(self, handle: int) -> None: ...
    def batch(
        self,
        now_ns: int,
        batch: int,
        *,
        layer_current: int = 0,
        layers: int = 0,
        rank: int | None = None,
        pruned: bool = False,
        deadline_ns: int = 0,
        compute_left_ns: int = 0,
    ) -> None: ...
    def batch_end(self, batch: int) -> None: ...
    def request(
        self,
        now_ns: int,
        request: int,
        *,
        deadline_ns: int = 0,
        budget_ns: int = 0,
        bytes_ahead: int = 0,
        bytes_tail: int = 0,
    ) -> None: ...
    def request_end(self, request: int) -> None: ...
    def prune(self, request: int) -> None: ...
    def unprune(self, request: int) -> None: ...
    def set_load(self, rho: float) -> None: ...
    def set_rate(self, rate_bytes_per_s: int) -> None: ...
    def advance(self, now_ns: int) -> int | None:
        """When to call again; None: only an event can change anything."""

    def waiting(self) -> int: ...
    def waiting_at(self, destination: int) -> int: ...
    def stats(self) -> RmlqStats: ...

# ---- rate allocation, for the simulator (_fluid.pxi) -----------------------------------------------------------------

class FluidPath:
    """Links a flow crosses and the share of its rate on each (1 where not given). ValueError: none, or one twice."""

    def __init__(self, links: Sequence[int], shares: Sequence[float] | None = None) -> None: ...

class Fluid:
    """Exact strict-priority max-min rates over links (fluid.h); bytes, seconds, bytes per second."""

    def __init__(self, capacities: Sequence[float]) -> None: ...
    def add_link(self, capacity: float) -> int: ...
    def set_capacity(self, link: int, capacity: float) -> None: ...
    def add(self, path: FluidPath, order: int, bytes: float, weight: float = 1.0) -> int:
        """A new flow's number. Smaller orders go first, equal ones share by weight."""

    def remove(self, flow: int) -> None: ...
    def refill(self, flow: int, bytes: float) -> None: ...
    def set_order(self, flow: int, order: int) -> None: ...
    @property
    def now(self) -> float: ...
    def next(self) -> float:
        """Time of the next completion, infinity when there is none."""

    def advance(self, now: float) -> None: ...
    def take_completed(self) -> list[int]: ...
    def rate(self, flow: int) -> float: ...
    def remaining(self, flow: int) -> float: ...
    def link_rate(self, link: int, before: int = ...) -> float: ...
    def stats(self) -> dict[str, int]: ...
    def replay(
        self, start_s: object, bytes: object, order: object, first_link: object, links: object, finish_s: object
    ) -> None:
        """Runs an open-loop trace, given as arrays, and writes finish_s."""

# ---- Algorithm 1, incremental (_plan.pxi) ----------------------------------------------------------------------------

class PlanDelta(NamedTuple):
    """What changed since the last `PlanCore.delta()`. Apply `restored` before the others: a number may be in use
    again."""

    pruned: list[Pruned]
    """Requests in the scavenger, new there or for another reason."""
    infeasible: list[int]
    """Requests that cannot be in time with every port to themselves; not those that are pruned."""
    restored: list[int]
    """Requests that an earlier delta had as pruned or infeasible and that are neither any more, or not active."""

class PlanCounts(NamedTuple):
    batches: int
    requests: int
    pruned: int
    infeasible: int
    drop_budget: int

class PlanCore:
    """Order and pruning under events, kept up to date (plan.h): equal to mfsd/policy/pruning.py by value.

    Resources are numbered from 0, and loads are nanoseconds of theirs. Refused (ValueError), with nothing changed: an
    arrival of an active batch, an update or departure of one that is not, a batch without requests, a request twice or
    in another batch, an unknown resource, and numbers that are negative or not whole. Numbers of batches and requests
    are below 2**64; times (the clock, compute, deadlines other than NO_DEADLINE), and all load that is promised on one
    resource, are at most 2**61 ns.
    """

    def __init__(self, config: PolicyConfig, resources: int) -> None: ...
    def arrive(self, batch: Batch, now_ns: int) -> None: ...
    def update(self, batch: Batch, now_ns: int) -> None:
        """Replaces an active batch by what is left of it."""

    def depart(self, batch_id: int, now_ns: int) -> None: ...
    def hold(self) -> None:
        """Events are taken and change nothing else, until `release` evaluates all of them as one."""

    def release(self, now_ns: int) -> None: ...
    def delta(self) -> PlanDelta:
        """What changed since it was last asked, after one event or many."""

    def plan(self) -> Plan:
        """The result of the last event. Builds everything: for inspection, not for every event."""

    def counts(self) -> PlanCounts: ...
    def spend(self, requests: int) -> None:
        """So many requests are pruned by others: they spend the drop budget from the next event on."""

    def promised(self, resource: int, red_ns: int | None = None) -> int:
        """For how long the resource is busy with batches of this RED and before, without what is pruned."""

# ---- windows ---------------------------------------------------------------------------------------------------------

class Passage(NamedTuple):
    """One task between enter and complete or leave."""

    entered_ns: int
    due_ns: int
    bytes: int
    destination: int

class DestinationWindow(NamedTuple):
    key: int
    window_bytes: int
    in_flight_bytes: int
    rate_bytes_per_s: int
    """At which it completed last; 0: unknown."""

ROOM: int
ROOM_NIC_FULL: int
ROOM_DESTINATION_FULL: int

class Window:
    """What may be under way in one direction of a NIC, in all and to each destination (window.h), clock passed in."""

    def __init__(self, rate_bytes_per_s: int, *, window_ns: int = 200_000, window_bytes_min: int = 131_072) -> None: ...
    def set_rate(self, rate_bytes_per_s: int, now_ns: int) -> None: ...
    def set_drain(self, bytes_per_s: float, now_ns: int) -> None: ...
    def destination(self, key: int, now_ns: int, program: int = 0) -> int:
        """The number of what a program sends to a destination; both are numbers below 2**32."""

    def take_waiting(self, destination: int) -> int | None:
        """Takes one of those that found the window of this one full; None: there is none any more."""

    def give(self, destination: int) -> None: ...
    def room(self, destination: int, size_bytes: int, now_ns: int, tier: int = 0) -> tuple[int, int]:
        """One of the three ROOMs, and with ROOM_NIC_FULL when to try again."""

    def enter(self, destination: int, size_bytes: int, now_ns: int) -> Passage: ...
    def complete(self, passage: Passage, now_ns: int) -> None: ...
    def leave(self, passage: Passage, now_ns: int, *, overdue: bool = False) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...
    def backlog(self, now_ns: int) -> int: ...
    def snapshot(self, destination: int) -> DestinationWindow: ...
    def rate_to(self, key: int, now_ns: int) -> int:
        """Bytes a second at which the destination completed last; 0: unknown, or forgotten."""

# ---- The serving simulator's step (_serving.pxi) ---------------------------------------------------------------------

class ServedCall:
    """What changes of a call while it is served: state 0 waits, 1 its prompt is partly computed, 2 decodes, 3 ended."""

    request_id: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    """Brought up to date when its prompt is done and when it ends; between these ask `produced`."""
    prefill_left: int
    folded: int
    """Output tokens that are part of the prompt since the KV was taken: they are computed again."""
    offset: int
    """Of a decode: its replica's round less what it has produced."""
    end_round: int
    state: int
    arrival_s: float
    due_s: float
    first_due_s: float
    """Both as in mfsd.policy.serve.Request; the first is never None."""
    output_tokens: float
    """Expected."""
    service_s: float
    since_busy_s: float
    ttft_s: float | None
    tbt_s: float | None
    ttlt_s: float | None
    first_token_s: float | None
    record: Any
    request: Any
    """As the policy sees it, while nothing has changed; None otherwise."""
    parked: bool
    """Waits with its KV kept: it was paused to free its slot."""

    def found(self, tokens: int) -> None:
        """While it waits: so many tokens of its prompt are in the cache."""

    def produced(self, round_: int) -> int: ...
    def held(self, round_: int) -> int:
        """Tokens of KV: those computed. The newest token of a decode is computed in the next step."""

class ServedPiece:
    """Prompt tokens of a call."""

    def __init__(self, live: ServedCall, tokens: int) -> None: ...
    @property
    def live(self) -> Any: ...
    @property
    def tokens(self) -> int: ...

class ServedDecision:
    """What a step computes: all decodes but those paused, and these pieces. set_aside: numbers, at least of those among
    the pieces that begin although they are lost or relegated."""

    def __init__(
        self, pieces: list[ServedPiece], paused: list[Any], set_aside: Collection[int], step_s: float
    ) -> None: ...
    @property
    def pieces(self) -> list[ServedPiece]: ...
    @property
    def paused(self) -> list[Any]:
        """Decodes that sit out."""

    @property
    def set_aside(self) -> Collection[int]: ...
    @property
    def step_s(self) -> float: ...

class ServedMemory:
    """Tokens of KV."""

    held: int
    """By running calls."""
    parked: int
    """By calls that were paused to free their slots, and by KV that moves to another replica or is awaited from one."""
    hits: int
    """Prompt tokens that were found."""
    prefixes: Any
    """What no call holds any more: `tokens`."""

class KeptQueue:
    """mfsd.policy.serve.plan_step for orders that can be kept, to the bit, without looking at the whole queue. Rows are
    (key, number, call); the lists are heaps but for the overdue rows, which are in order."""

    overdue_rows: list[tuple[float, int, Any]]
    overdue_numbers: set[int]

    def __init__(
        self,
        config: Any,
        rest_each: int,
        low: list[list[tuple[float, int, Any]]],
        high: list[list[tuple[float, int, Any]]],
    ) -> None:
        """rest_each: mfsd.policy.serve.fence.REST_STEPS. low, high: those that wait in the order of the least alpha and
        of the greatest, each as [rows, rows of those that come last since their deadline has passed]."""

    rest_steps: int
    """So many steps keep memory for no other call, from when this one is in."""

    def start(self, step: int, small: Any, large: Any, reserved: Any, rest_steps: int) -> None:
        """From this step on, with these pieces of a Pace, memory that is kept for this call, and steps of rest."""

    @property
    def reserved_number(self) -> int | None:
        """Of the call that memory is kept for; None: of none."""

    def pieces(self) -> tuple[tuple[tuple[float, ...], tuple[float, ...], int], ...]:
        """(terms, inverse, steps) of both pieces of the Pace."""

    def expire(self, now_s: float) -> None:
        """Asked of the subclass when the first of `by_due` has passed."""

    def overdue(self, now_s: float) -> None:
        """Asked of the subclass at steps that begin with what is overdue: brings rows and numbers up to date."""

    @property
    def step(self) -> int: ...
    @property
    def by_due(self) -> list[tuple[float, int, Any]]: ...
    @property
    def by_budget(self) -> list[tuple[float, int, Any]]: ...
    @property
    def by_cached(self) -> list[tuple[float, int, Any]]: ...
    @property
    def by_left(self) -> list[tuple[float, int, Any]]: ...
    @property
    def limits(self) -> list[tuple[float, int, Any]]:
        """Decodes by when their next token was due when this was last read; it only grows."""

class StepLoop:
    """A replica's steps. Its subclass answers what is asked once a call, or seldom: give_way, idle, timed, asked,
    begins, filled, ends_now; seconds where a step's time is no line; noise and noise_observed where there is any."""

    round: int
    """Steps so far: all decodes make a token in each."""
    context: int
    """Tokens that the decodes attend to, in all."""
    wanted: int
    """Prompts of running calls and what the decodes have produced, each token once: what the fence counts."""
    left_tokens: int
    """Prompt tokens of calls that wait or are partly computed."""
    busy_s: float
    step_s: float
    """Mean step time."""
    busy: bool
    memory: Any
    planner: Any
    steps: int
    prefill_tokens: int
    decode_tokens: int
    kv_peak_tokens: int
    errors: int
    over: int
    error_sum: float
    end_s: float

    def __init__(self, config: Any, learns: bool, pace_weight: float) -> None:
        """pace_weight: of the latest step in the mean step time."""

    def ruled(self, margin: float) -> None:
        """Estimates have this margin from now on."""

    def begin(self, now_s: float) -> float | None:
        """Plans a step and begins it; when it ends, or None when there is nothing to compute."""

    def plan(self, now_s: float) -> ServedDecision: ...
    def finish(self, now_s: float) -> list[Any]:
        """The step has ended; who ends with it."""

    def take_seen(self) -> tuple[int, int, int, float, float] | None:
        """The step that has ended since the last plan, if it is to be learned from: prefill tokens, decodes, context,
        pairs, seconds."""

    def token_due_s(self, live: ServedCall, made: int) -> float:
        """When the token after so many is due."""

    @property
    def waiting(self) -> dict[int, Any]: ...
    @property
    def prompts(self) -> dict[int, Any]:
        """Partly computed."""

    @property
    def decodes(self) -> dict[int, Any]: ...
    @property
    def ends(self) -> list[tuple[int, int, Any]]:
        """Decodes by the round in which they end."""

    @property
    def due(self) -> list[tuple[float, int, Any]]:
        """Decodes with a TBT by when their next token was due when this was last read; it only grows."""

    @property
    def chunk_sizes(self) -> dict[int, int]: ...
