"""Python binding of MFS's native core (`csrc/`).

Times are in nanoseconds of this host's CLOCK_MONOTONIC, sizes in bytes, rates in bytes per second. A native error
-errno is raised as OSError with that errno. Only `csrc/include/mfs/abi.h` defines the layouts of shared memory and of
socket messages; all Python code encodes and decodes them with this module.
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
"""Number of NICs that a program or daemon with an ABI minor version below NICS_MINOR knows."""
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
"""Offset in the segment by dotted name ("header.magic", "submit.tail", "submit_slot", ...), for tests and doctor."""

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
    """What the engine announces about a request besides its deadline."""

    RELEGATED = 1
    SPECULATIVE = 2
    SWAP = 4
    WAITING = 8
    """The request still queues at its engine."""

class Judgement(IntFlag):
    """What the daemon has decided about a request."""

    PRUNED = 1

class Direction(IntEnum):
    """Direction of a demand, as seen from this node."""

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

# ---- socket messages: SOCK_SEQPACKET, one message per packet ---------------------------------------------------------

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
    """Decodes a hello; ValueError if its length is not HELLO_BYTES or its magic differs.

    The caller checks the version with `hello_version_error`. Names end at the first NUL; bytes that are not UTF-8 are
    replaced."""

def hello_version_error(hello: Hello) -> str | None:
    """Returns one readable line that says why this daemon cannot serve the client; None if it can.

    A different minor version is no error: both ends then use only what the older one knows."""

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
    """How clients tell queue pairs apart (struct mfs_rule). The first rule that matches counts."""

    library: str = ""
    """Part of the file name of the object that created the queue pair; at most 31 bytes."""
    process: str = ""
    """Part of the program's name; at most 31 bytes."""
    peer: bytes = b""
    """Prefix of the remote GID, up to 16 bytes; IPv4 as ::ffff:a.b.c.d."""
    peer_prefix_bits: int = 0
    role: int = 0
    """Role that the client must have found by capabilities; 0: any."""
    action: int = 0
    stage: int = 0
    dscp: int = 255
    """0..63, or DSCP_KEEP."""
    set_role: int = 0
    communicator: str = ""
    """Part of the name of the NCCL communicator; at most 31 bytes."""

THRESHOLD_TOP: Final[float]
THRESHOLD_BASE: Final[float]
LOAD_TIME_CONSTANT_NS: Final[int]
NO_DEADLINE: Final[int]
"""A deadline that never comes, in ns. It sorts after every real deadline."""
RENEWAL_BUDGETS: Final[int]
"""Variant mfs: a lost request is due again this many of its budgets after its deadline."""
SIZE_NONE: Final[int]
"""Size class of flows whose batch does not run. It sorts after running batches and after flows without a batch."""
LATE_SIZES: Final[int]
"""Size classes added to a load without a batch that cannot be in time; two classes are four times the bytes."""

class Parameter(NamedTuple):
    default: Any
    """int or float, of the same type as `least` and `most`."""
    least: Any
    most: Any

POLICY_PARAMETERS: Final[dict[str, Parameter]]
"""The parameters of MFS_POLICY_PARAMETERS (mfs/policy.h), by name."""

class Policy:
    """Named tuple of POLICY_PARAMETERS and `threshold` (struct mfs_policy). Each parameter has a default, that for
    CLASSES_MAX classes. `threshold` has levels - 1 falling numbers; empty: THRESHOLD_TOP / THRESHOLD_BASE^(i-1)."""

    def __init__(self, *, threshold: tuple[float, ...] = (), **parameters: float) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def _replace(self, **changes: Any) -> Policy: ...

class Decision(NamedTuple):
    """Decision about a request's last stage; it holds until the next evaluation (struct mfs_decision)."""

    level: int
    """Variant paper: smaller is more urgent. Variant mfs has no levels: 0."""
    critical: bool = False
    infeasible: bool = False

class OrderReasons(NamedTuple):
    """The values behind the decision about a last stage that has a deadline (struct mfs_reasons)."""

    laxity_ns: int
    """Time to spare if it had the port to itself. Negative: it cannot be in time."""
    guard_ns: int
    """Variant mfs: class 0 opens below this laxity."""
    due_ns: int
    """Time by which it is sorted within its tier."""
    effective_rate_bytes_per_s: int
    """Variant paper: the rate that the load leaves of the port."""
    level_ns: int | None
    """Variant paper: when it reaches the next level if none of its bytes is served."""

class OrderPlace(NamedTuple):
    """Where a flow stands (struct mfs_place)."""

    key: tuple[int, int, int, int, int]
    """(tier, first, second, third, sequence); the smallest key goes first. The middle three, by tier: early: RLI, size
    class << 32 | rank (or rank), stage. Last: level (0 without levels), due time. Scavenger: 0, deadline. NO_DEADLINE:
    never."""
    tier: int
    """The tier of the flow. The key of a critical request may still name the early tier."""
    wire_class: int
    late: bool
    """Reuse without a batch that cannot arrive in time and therefore counts as larger."""

class OrderFacts(Protocol):
    """The facts about a flow that the rules need. mfsd.policy.Flow implements this and documents each."""

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
    """The ordering rules of one NIC (mfs/policy.h) without a queue: the same C functions that the queue calls.

    Times are ns on one clock, from 0. ValueError and OSError: the policy is out of range."""

    def __init__(self, policy: Policy = ...) -> None: ...
    @property
    def by_size(self) -> bool:
        """Whether early flows of equal RLI are ordered by the size that their batch waits for. Critical requests are
        then ordered among them."""

    def first(self) -> Decision:
        """Returns the decision about a request that has not been evaluated yet."""

    def evaluate(
        self, flow: OrderFacts, last: Decision, now_ns: int, rho: float = 0.0, unit_slack_ns: int | None = None
    ) -> tuple[Decision, int | None]:
        """Returns the decision about a last stage, and when to evaluate it again if nothing happens before (None: only
        an event can change it). unit_slack_ns None: no unit is busy whose early stages would wait."""

    def reasons(self, flow: OrderFacts, decision: Decision, now_ns: int, rho: float = 0.0) -> OrderReasons: ...
    def place(self, flow: OrderFacts, decision: Decision, now_ns: int, layer_current: int = 0) -> OrderPlace:
        """Returns where the flow stands. `decision` is used for last stages only."""

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
    """The same for both directions."""
    in_flight_bytes: list[int]
    """By direction: out, in."""
    unscheduled_in_flight_bytes: int
    held_bytes: list[int]
    """By class, as are the next four lists."""
    held_tasks: list[int]
    in_flight_class_bytes: list[int]
    granted_bytes: list[int]
    grants: list[int]
    promotions: int
    wait_ns: int
    load: list[float] | None
    """rho by direction. None: not measured, because the policy has no levels."""
    carried_bytes: list[list[int]]
    """Bytes that tasks have completed since the start, by direction and class."""
    unscheduled_carried_bytes: int
    """Bytes completed in stages that never wait, in both directions."""
    passed_bytes: int
    """Bytes completed without a permit in the other stages."""
    used: list[float]
    """Moving average of the share of the rate that was in use, by direction."""

class ClientStats(TypedDict):
    client_id: int
    state: int
    detach_reason: int
    submits: int
    grants: int
    taken: int
    """The part of the grants that the client took on credit, without asking."""
    completes: int
    cancels: int
    torn_slots: int
    bad_messages: int
    held_bytes: int
    in_flight_bytes: int
    posted_bytes: list[int]
    """By stage, as is the next list."""
    completed_bytes: list[int]
    collective_bytes: list[int]
    """Bytes completed in stage 2, by NIC."""
    queue_pairs: list[int]
    """By role."""
    report_held_bytes: int
    report_permits: int
    bypassed_overflow: int
    bypassed_hold: int
    bypassed_stale: int
    hold_ns: int

class CommunicatorSnapshot(NamedTuple):
    """A communicator as reported by the NCCL profiler plugin of a client (struct mfs_communicator)."""

    id: int
    name: str
    rank: int
    ranks: int
    operations: int
    operation_bytes: int
    """Bytes that the operations were called with."""
    work_requests: int
    batch_bytes: int
    """The part of the bytes sent that belongs to a batch."""
    sent_bytes: list[int]
    """Bytes that this rank has sent, by operation (enum mfs_operation)."""
    batch: int | None
    """Slot of the batch of the latest send."""
    layer: int

class DemandSnapshot(NamedTuple):
    """The daemon's copy of a demand. `bytes_left` are the announced bytes less the completed ones."""

    bytes: int
    bytes_left: int
    peer: builtins.bytes
    """GID, 16 bytes; zero: unknown."""
    layer: int
    stage: int
    nic: int
    direction: int

class RequestSnapshot(NamedTuple):
    """The daemon's copy of a request. A field of 0: none, unknown or not announced."""

    request_id: int
    program_id: int
    deadline_ns: int
    budget_ns: int
    value: int
    flags: int
    pruned: bool
    demands: tuple[DemandSnapshot, ...]
    rank: int = 0
    """Only set while the request still queues, as is `tokens_left`."""
    tokens_left: int = 0

class BatchSnapshot(NamedTuple):
    """The daemon's copy of a batch. `compute_left_ns` counts from the time of the snapshot."""

    client_id: int
    slot: int
    batch_id: int
    deadline_ns: int
    """As announced by the engine; 0: none."""
    compute_left_ns: int
    layers: int
    layer_current: int
    rank: int
    """RANK_NONE: none."""
    requests: tuple[RequestSnapshot, ...]

class TaskSnapshot(NamedTuple):
    """A task and the facts that decide its place (struct mfs_task_snapshot, mfs_rmlq_snapshot)."""

    task: int
    bytes: int
    submit_ns: int
    request_id: int
    batch_id: int
    deadline_ns: int
    """The deadline submitted with the task; 0: none."""
    in_flight: bool
    layer: int
    stage: int
    nic: int
    direction: int
    """0: out, 1: in."""
    wire_class: int
    queued: bool
    """False: the queue was full, and the fields below are empty."""
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
    """Bytes of its request through this NIC: waiting, in flight and still to come."""
    bytes_ahead: int
    """The part of `bytes_left` that was announced and not submitted yet."""
    bytes_tail: int
    bytes_whole: int
    """Whole size of a waiting load whose class depends on that size. 0: the class depends on `bytes_left`."""
    level: int
    critical: bool
    lost: bool
    pruned: bool

class NicFacts(NamedTuple):
    """The facts about a port that its queue uses. `unit_slack_ns` None: no batch is under way there."""

    rate_bytes_per_s: int
    rho: float
    unit_slack_ns: int | None

class NicCounted(NamedTuple):
    """Bytes that programs with the shim have posted to a NIC since the start, by direction: out, in."""

    posted_bytes: tuple[int, ...]
    unscheduled_bytes: int
    """The part of `posted_bytes` in stages that never wait."""
    outstanding_bytes: int
    """Posted and not completed, in both directions."""
    class_bytes: tuple[tuple[int, ...], ...]
    """Bytes that tasks have completed, by class."""

EVENT_LAYOUT: int
EVENT_BYTES: int
EVENT_SLOTS_MAX: int
LEDGER_REQUESTS: int
LEDGER_REQUEST_CELLS: int
LEDGER_LAYER_REST: int
"""Layer under which the bytes of a request are counted beyond LEDGER_REQUEST_CELLS pairs of stage and layer."""

class Verdict(IntEnum):
    """enum mfs_verdict. NONE: the request had no deadline, or its program ended first."""

    NONE = 0
    MET = 1
    MISSED = 2

class AccountCell(NamedTuple):
    """One stage and layer of a request (mfs/ledger.h, struct mfs_account_cell)."""

    stage: int
    layer: int
    tasks: int
    submitted_bytes: int
    completed_bytes: int
    bypassed_bytes: int
    dropped_bytes: int
    first_ns: int
    last_ns: int
    """0: nothing has completed."""

class Account(NamedTuple):
    """Bytes that one process has moved for a request (mfs/ledger.h, struct mfs_account). A field of 0: none or not
    yet."""

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
    """An announced request that has ended (mfs/ledger.h, struct mfs_finished)."""

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
    """The daemon's native thread, which permits tasks.

    Its methods may be called from any Python thread; a lock serializes them. They take microseconds and release the
    GIL while they wait. After `close` they raise OSError(ESHUTDOWN)."""

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
        """epoch 0: the epoch is taken from the clock, so that each start has another. ValueError names a field that is
        out of range."""

    @property
    def epoch(self) -> int: ...
    def start(self) -> None: ...
    def close(self) -> None:
        """Stops the thread. Clients see state DETACHED and post without permits. May be called twice."""

    def __enter__(self) -> Arbiter: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def client_add(self) -> tuple[int, int, int]:
        """Adds a client; returns (client id, memfd, doorbell eventfd). The caller sends both descriptors with the
        welcome and closes them. EUSERS: CLIENTS_MAX reached; ENOSPC: no memory for a segment."""

    def client_remove(self, client_id: int) -> None:
        """ENOENT: no such client."""

    def nic(self, name: str, guid: int = 0, rate_bytes_per_s: int = 0) -> int:
        """Returns the index of the NIC, which is added if new. A rate of 0 keeps the known one. ENOSPC: NICS_MAX
        reached."""

    def rules(self, rules: Sequence[Rule]) -> None:
        """Replaces the rules for all present and future clients."""

    def mode(self, mode: int) -> None: ...
    def wire(self, dscp: Sequence[int]) -> None:
        """Sets the DSCP of class 0, 1, ... for all present and future clients. Classes beyond the list have none."""

    def batch_rank(self, client_id: int, batch_id: int, rank: int) -> None:
        """Sets the rank of a batch. ENOENT: the client has no such batch."""

    def request_prune(self, client_id: int, request_id: int, pruned: bool) -> None:
        """Sets whether the request is served in the scavenger tier. ENOENT: the client has announced no such
        request."""

    def waiting(self) -> list[tuple[int, tuple[RequestSnapshot, ...]]]:
        """Returns each client whose queued requests (RequestFlag.WAITING) have changed since the last call, with all
        that it has queued now. `notice_fd` becomes readable for such changes too."""

    def outlook_fd(self) -> int | None:
        """Returns a descriptor of the outlook page for a client; the caller closes it. None: this kernel cannot seal
        one."""

    def outlook(
        self,
        fars: Sequence[tuple[bytes, int, int, int | None]],
        pruned: Collection[int],
        far_valid_until_ns: int,
        pruned_valid_until_ns: int,
    ) -> None:
        """Replaces the far ports (GID, direction of the flows, rate, time owed there) and the pruned requests on the
        outlook page, and until when each are valid. ValueError: more than OUTLOOK_FARS_MAX or OUTLOOK_PRUNED_MAX."""

    def notice_fd(self) -> int:
        """Returns an eventfd that is readable once contexts have changed. Read it, then call `changed`; do not close
        it."""

    def changed(self) -> list[tuple[int, int, BatchSnapshot | None]]:
        """Returns (client id, slot, batch) of each batch that arrived, changed or ended since the last call; the batch
        is None if the slot has none any more."""

    def batch_snapshot(self, client_id: int, slot: int) -> BatchSnapshot | None:
        """Returns None if the slot has no batch (any more)."""

    def tasks(self, client_id: int) -> list[TaskSnapshot]:
        """Returns the client's tasks that wait or are in flight. ENOENT: no such client."""

    def facts(self, nic: int, direction: int) -> NicFacts:
        """Returns the facts that the queue of one direction (0: out, 1: in) uses. ENOENT: no such NIC or direction."""

    def accounts(self, request_id: int = 0) -> list[Account]:
        """Returns the accounts of one request, or (0) of all requests in the ledger."""

    def finished(self) -> list[Finished]:
        """Returns the announced requests that have ended since the last call, each once for every process that
        announced it. `notice_fd` is readable when there are some."""

    def ledger_totals(self) -> LedgerTotals: ...
    def opened(self) -> dict[str, int]:
        """Returns how often it failed open since the start, by reason. `queue_full` and `bypass` count tasks,
        `given_up` and `written_off` count clients."""

    def trace_attach(self, slots: int = 65536) -> None:
        """Starts to record events. EBUSY: it already does; EINVAL: slots is not a power of two up to
        EVENT_SLOTS_MAX."""

    def trace_detach(self) -> None:
        """Stops recording events. ENOENT: not attached."""

    def trace_read(self, n: int = 4096) -> tuple[bytes, int]:
        """Returns up to n events of EVENT_BYTES each, oldest first, and how many were lost since `trace_attach`.
        ENOENT: not attached."""

    def stats(self) -> ArbiterStats: ...
    def nic_stats(self, nic: int) -> NicStats:
        """Indices of NICs are 0..stats()["nics"]-1. ENOENT: no such NIC."""

    def counted(self, nic: int) -> NicCounted:
        """ENOENT: no such NIC."""

    def bypass(self, nic: int, sent_bytes_per_s: int, received_bytes_per_s: int, valid_until_ns: int) -> None:
        """Sets the rates of traffic on the port that does not come from programs with the shim. They count as load
        until `valid_until_ns`. ENOENT: no such NIC."""

    def client_stats(self, client_id: int) -> ClientStats:
        """ENOENT: no such client."""

    def communicators(self, client_id: int) -> list[CommunicatorSnapshot]:
        """Returns the NCCL communicators that the client reports. ENOENT: no such client."""

# ---- client ----------------------------------------------------------------------------------------------------------

class DemandInfo(NamedTuple):
    """Bytes of one stage and layer between a NIC of this node and a port of another. `peer` is a GID or empty."""

    bytes: int
    peer: builtins.bytes = b""
    layer: int = 0
    stage: int = 3
    nic: int = 0
    direction: int = 0

class RequestInfo(NamedTuple):
    """What an engine announces about a request (client.h, struct mfs_request_info). A field of 0: none, unknown or not
    announced."""

    request_id: int
    program_id: int = 0
    deadline_ns: int = 0
    budget_ns: int = 0
    value: int = 0
    flags: int = 0
    demands: tuple[DemandInfo, ...] = ()
    rank: int = 0
    """With RequestFlag.WAITING: its place in the engine's order; smaller goes first."""
    tokens_left: int = 0
    """With RequestFlag.WAITING: tokens to compute until its first output token."""

class Open(IntEnum):
    """Why a task goes without a permit (enum mfs_open)."""

    OVERFLOW = 0
    HOLD = 1
    STALE = 2

def peer_hash(gid: builtins.bytes) -> int:
    """Returns the number of the port with this GID of 16 bytes (mfs_peer_hash). It is the same on every host, and 0
    for a GID of zeros."""

class OutlookPort(NamedTuple):
    """One direction of a NIC of this node, summed over its processes (struct mfs_port_outlook)."""

    rate_bytes_per_s: int
    waiting_bytes: tuple[int, int, int, int]
    """By tier: critical, early, last, scavenger."""
    in_flight_bytes: int
    achieved_bytes_per_s: int
    """Recent rate of the traffic that asks for permits."""
    unscheduled_bytes_per_s: int
    """Recent rate of the traffic that never waits."""

class OutlookFar(NamedTuple):
    """A port of another node that flows of this node come from or go to (struct mfs_far_outlook)."""

    peer: builtins.bytes
    """GID."""
    direction: int
    """Direction of the flows, as seen from this node."""
    rate_bytes_per_s: int
    """0: unknown."""
    owed_ns: int | None
    """Time that the port needs for all bytes promised there. None: no coordinator reports it."""
    achieved_bytes_per_s: int
    """Rate of this node's own flows with the port; 0: none."""

class OutlookPage(NamedTuple):
    """A copy of the outlook page. Times are on CLOCK_MONOTONIC."""

    epoch: int
    written_ns: int
    valid_until_ns: int
    far_valid_until_ns: int
    """0: no coordinator reports far ports."""
    ports: tuple[OutlookPort, ...]
    """Indexed by NIC * 2 + direction."""
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
    """Forecasts how long a fetch takes (mfs_fetch_forecast): mfsd/policy/outlook.py in C. `own` has the fields of
    OutlookPort; `far` is (rate, time owed, rate achieved)."""

class Client:
    """The session of a process with the daemon of its node (client.h). Methods may be called from any thread."""

    @staticmethod
    def attach(
        socket_path: str | None = None, *, process: str | None = None, mode: int = 2, timeout_ms: int = 0
    ) -> Client:
        """Attaches to the daemon. None and 0 stand for the defaults ($MFS_SOCKET or /run/mfs/mfsd.sock, 200 ms).

        OSError: ENOENT or ECONNREFUSED no daemon, EPROTO another version or size, EACCES refused, ETIMEDOUT, EPERM a
        setuid program; its strerror is a readable line."""

    @staticmethod
    def borrow(address: int) -> Client:
        """Returns the client at this address, which another copy of the native code in this process (the shim, api.h)
        owns and never unmaps. `detach` and `forget` then only drop the reference."""

    @property
    def borrowed(self) -> bool: ...
    def detach(self) -> None: ...
    def forget(self) -> None:
        """Drops the session without informing the daemon: call this instead of `detach` in a child after fork."""

    def __enter__(self) -> Client: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def client_id(self) -> int: ...
    @property
    def minor(self) -> int:
        """The lower of the minor ABI versions of this code and of the daemon."""

    @property
    def epoch(self) -> int: ...
    def alive(self) -> bool: ...
    def detached(self) -> bool:
        """Whether the daemon has given this client up or has stopped."""

    def nic_name(self, nic: int) -> str:
        """Returns the NIC's name; empty if the daemon knows no NIC of this index."""

    def hung_up(self) -> bool: ...
    def mode(self) -> int: ...
    @property
    def classes(self) -> int:
        """Number K of classes on the wire. They are 0..K-1; K-1 is the scavenger's."""

    @property
    def max_hold_ns(self) -> int: ...
    def dscp(self) -> list[int | None]:
        """Returns the DSCP of each class; None for a class that the fabric does not mark."""

    @property
    def apart(self) -> int:
        """Bit mask of the classes that the wire keeps apart from the class of collectives."""

    def outlook(self) -> OutlookPage | None:
        """Returns a copy of the outlook page. This and the calls below return None if nothing is known now."""

    def outlook_port(self, nic: int, direction: int) -> OutlookPort | None: ...
    def outlook_far(self, peer: bytes, direction: int) -> OutlookFar | None: ...
    def request_pruned(self, request_id: int) -> bool | None:
        """Whether the request is pruned; it may belong to any process of this node."""

    def fetch_ns(
        self,
        nic: int,
        size_bytes: int,
        peer: bytes = b"",
        deadline_ns: int = 0,
        announced_bytes: int = 0,
        far_bytes: int | None = None,
    ) -> int | None:
        """Returns how long a fetch would take from now on. `deadline_ns` 0: nothing waits for it. `far_bytes` go
        through the owner's port (default: size_bytes); `announced_bytes` is the announced part of them."""

    def gate(self, nic: int) -> int:
        """Returns the bit mask of the stages that must ask for permits (1 << stage)."""

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
        """Submits a task and returns its id.

        ENOTCONN: the daemon is gone; EAGAIN: no slot is free or the ring is full. In both cases post without a permit.
        EINVAL: 2**40 bytes or more.

        `asked`: the caller gets the permit with `permit` or `permit_wait`; `permits` does not return it.
        `class_marked`: the task leaves on the lane of its permitted class, so it need not wait for collectives where
        the wire has classes. `incoming`: its bytes come to this node (RDMA READ), so it waits only for that direction
        of the link. `peer`: `peer_hash` of the port that it goes to, 0: unknown. `queue`: the queue pair, 0: none.
        """

    def permit(self, task_id: int) -> int | None:
        """Returns the class of a permitted task; None while it waits. ENOENT: the task has ended."""

    def permit_wait(self, task_id: int, timeout_ns: int) -> int | None:
        """Sleeps until the task is permitted and returns its class; None after timeout_ns. ENOTCONN: the daemon is
        gone."""

    def submit_transfer(self, transfer: Transfer, nic: int, batch: int | None, peer: int) -> int:
        """Submits a transfer as a task and returns its id, for `permit` and `permit_wait`. `nic`, `batch` and `peer`
        are this client's numbers for those that the transfer names. Errors are those of `submit`."""

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
        """Submits a transfer and waits for its permit, for at most `max_hold` and timeout_ns.

        If the transfer goes without a permit, because its stage need not ask or the time is up, its class is
        `otherwise`. None: the daemon only observes, or is gone. LookupError: the daemon knows no such NIC."""

    def take(self, transfer: Transfer, nic: int, batch: int | None, peer: int, /) -> Permit | None:
        """Returns a permit on credit. None: there is no credit or no daemon, and nothing was submitted. Errors are
        those of `submit_transfer`."""

    def permits(self, n: int = 64) -> list[tuple[int, int]]:
        """Returns (task id, class on the wire) of up to n permits that have arrived."""

    def wait(self, timeout_ns: int) -> bool:
        """Sleeps until permits arrive; returns False after timeout_ns."""

    def complete(self, task_id: int) -> None: ...
    def cancel(self, task_id: int, bypassed: bool = False) -> None: ...
    def count_posted(self, nic: int, stage: int, size_bytes: int) -> None: ...
    def count_completed(self, nic: int, stage: int, size_bytes: int) -> None: ...
    def count_open(self, why: Open) -> None:
        """Counts a task that goes without a permit."""

    def batch_begin(self, batch_id: int, layers: int, deadline_ns: int = 0, compute_ns: int = 0) -> int: ...
    def batch_begin_with(
        self, batch_id: int, layers: int, requests: Sequence[RequestInfo], deadline_ns: int = 0, compute_ns: int = 0
    ) -> tuple[int, list[int]]:
        """Begins a batch and its requests; returns their slots. ENOSPC: there are too many, and nothing was begun.
        EINVAL: an id is 0, or a request has more than REQUEST_DEMANDS_MAX demands."""

    def batch_layer(self, batch: int, layer_current: int) -> None: ...
    def batch_end(self, batch: int) -> None:
        """Ends a batch and its requests. ENOENT: it has ended already."""

    def request_begin(self, request: RequestInfo, batch: int | None = None) -> int:
        """Begins a request that comes later than its batch or has none; returns its slot. Errors are those of
        `batch_begin_with`."""

    def request_end(self, request: int) -> None:
        """Ends a request. ENOENT: it has ended already."""

    def request_judgement(self, request: int) -> int:
        """Returns what the daemon has decided about a request, as flags of `Judgement`."""

    def rules(self) -> list[Rule]: ...

class Permit:
    """Permission to send one message, returned by `Client.ask` and `Client.take`. It is cancelled if it is deleted
    without `complete`."""

    @property
    def wire_class(self) -> int:
        """Priority of the message on the wire; 0 is the highest."""

    def ready(self) -> bool:
        """Returns True. With this and `wait` a permit can be used like a `mfsd.client.Task`."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Returns the class at once."""

    def complete(self) -> None:
        """Reports that the bytes have arrived."""

    def cancel(self) -> None:
        """Reports that the message is not sent."""

# ---- the adapter's fast path -----------------------------------------------------------------------------------------

class Settled:
    """The client and numbers that a process asks for permits with; its session keeps them up to date."""

    client: Client | None
    """None: there is no client, or it must be asked of the attachment."""
    nics: dict[int, int]
    """The session's number of each NIC -> the daemon's number."""
    open_class: int
    """Class of messages that go without a permit."""

    def __init__(self, open_class: int) -> None: ...

class FastPath:
    """Runs a call that moves one buffer to or from a peer as one native call: finds out what it is for, gets the permit
    and the lane of its class, calls the library's own method and reports the completion.

    The owner decides: `course(peer)` returns what applies to all calls to a peer: the session's number of the NIC,
    whether writes and whether reads are marked with their class, the lane of each class (None for the engine itself)
    and the name of the port that they go to. It is called again after `course_ns` and after `changed`. A lane is an
    engine and the peer's name there.
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
        """`slot_of` returns the slot of a batch, `peer_of` the number of a port's name. `context` holds None or
        (request, stage or None, layer, deadline_ns, batch). While one of `owned` is not empty, addresses may have
        owners and no call takes this path. `route` returns the lane of a class that is not in the course. If a transfer
        in a lane fails, `failed` is called with the peer. The engine itself then tries once more and its result counts,
        unless `give_up_ns` have passed since the call began."""

    def changed(self) -> None:
        """What `course` answers has changed."""

def one_buffer(original: Callable[..., int], otherwise: Callable[..., int], reading: bool) -> Callable[..., int]:
    """Returns a method for a class whose instances have a FastPath or None as `_mfs_fast_path`.

    It runs `original(self, peer, address, peer_address, length)` by that path and returns or raises what `original`
    does. It calls `otherwise` in unusual cases: other arguments, a large message, an owner of addresses, no course,
    nothing scheduled."""

# ---- the fast path of transfers that are posted, and then polled by their program ------------------------------------

class Unasked:
    """Native transfers that only their programs poll so far, and the bell of the thread that will poll them later."""

    def __init__(self, arriving_ns: int, waiting_ns: int) -> None:
        """How long only its program polls a transfer: `arriving_ns` once it is in the network, `waiting_ns` while it
        waits for its permit."""

    def __len__(self) -> int: ...
    def due(self) -> list[Posting]:
        """Returns the transfers whose time is over. They stay here until they end or are handed over."""

    def ring(self) -> None:
        """Wakes the thread."""

    def soon(self) -> None:
        """Wakes the thread in `arriving_ns`."""

    def wait(self, timeout_s: float) -> None:
        """Waits until the bell rings or the time is over."""

    def wait_until_due(self) -> None:
        """Waits, without the GIL, until the bell rings or a transfer is due."""

class Posting:
    """A transfer of one message that native code handles. In unusual cases it is handed over: the Transfer that
    `transfer_of` makes of it replaces it, for good or until that Transfer has ended and is started again."""

    def __init__(self) -> None:
        """Raises TypeError: only PostedPath.posting and the methods of its agent make postings."""

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
    """Stage if the metadata has none."""

    @property
    def native(self) -> bool:
        """Whether native code has posted it and has not handed it over."""

    @property
    def waits(self) -> bool:
        """Whether native code has asked for its permit and waits for it."""

    def transfer(self) -> Any:
        """Hands it over and returns its Transfer."""

class PostedPath:
    """Makes, permits, posts, polls and releases transfers of one message in native code, one call each.

    Nothing is decided here. A transfer is left to Python if it has a lane or an owner of its memory, if it fails, waits
    long or cannot be asked for: either before anything was done, or with the permit that it has.
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
        """`binding` is NIXL's agent, whose results are `success`, `in_progress` or failures. `course` and `course_ns`
        are those of FastPath, but the classes are those that use the program's own backend. `begin` starts the thread
        of `unasked`.

        The other functions continue in Python. `transfer_of` makes the Transfer (True: it was released). `take_over`
        continues one that is under way (without a permit: has arrived) since a time in seconds, with NIXL's result if
        there is one. `wait_on` waits for the permit of a task that the client submitted at a time in nanoseconds.
        `start_permitted` posts it, `check` returns its state, `fail` handles that NIXL has not accepted it. `proc` is
        the `state` of a Transfer that is under way."""

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
        """Lets this path also make transfers, of up to `size_max_bytes` between lists of `prepared_class`, by agent
        `name` with other agents. Their metadata is that of `call`, else of `context`, else `unknown`; its stage, if
        missing, is `reads` or `writes`. If there are `lanes`, the indices are `copied` so that a transfer can be made
        again there."""

    def posting(
        self, kept: Any, own: Any, peer: str, metadata: Any, size_bytes: int, stage: int, incoming: bool
    ) -> Posting | None:
        """Returns the posting of a Transfer that Python has made with NIXL's handle `own`; None if it must stay in
        Python."""

    def changed(self) -> None:
        """What `course` answers has changed."""

def posted_make(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Returns NIXL's make_prepped_xfer for agents that have a PostedPath or None as `_mfs_path`. `otherwise` is the
    path in Python. Handles have the Posting as `posting`, which the functions below use."""

def posted_transfer(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Returns NIXL's transfer."""

def posted_check(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Returns NIXL's check_xfer_state."""

def posted_release(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the `release` of handles."""

def posted_del(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the `__del__` of handles."""

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
    """The reverse multi-level queue of one NIC (rmlq.h). Each method calls one C function; the caller passes the time.
    incoming: its flows are fetched from ports of other hosts."""

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
        """Lets `peek` and `pick` skip flows to the destination until `open_destination`."""

    def open_destination(self, destination: int) -> None: ...
    def place(self, handle: int) -> Pick: ...
    def complete(self, handle: int, size_bytes: int | None = None) -> bool:
        """Completes bytes of a flow (None: all); returns whether the flow is done."""

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
        """Applies the promotions due by now_ns. Returns when to call again; None if only an event can change
        anything."""

    def waiting(self) -> int: ...
    def waiting_at(self, destination: int) -> int: ...
    def stats(self) -> RmlqStats: ...

# ---- rate allocation, for the simulator (_fluid.pxi) -----------------------------------------------------------------

class FluidPath:
    """The links that a flow crosses and the share of its rate on each (default 1). ValueError: no link, or one
    twice."""

    def __init__(self, links: Sequence[int], shares: Sequence[float] | None = None) -> None: ...

class Fluid:
    """Computes exact strict-priority max-min rates over links (fluid.h) in bytes, seconds, and bytes per second."""

    def __init__(self, capacities: Sequence[float]) -> None: ...
    def add_link(self, capacity: float) -> int: ...
    def set_capacity(self, link: int, capacity: float) -> None: ...
    def add(self, path: FluidPath, order: int, bytes: float, weight: float = 1.0) -> int:
        """Adds a flow and returns its number. Smaller orders go first; flows of equal order share by weight."""

    def remove(self, flow: int) -> None: ...
    def refill(self, flow: int, bytes: float) -> None: ...
    def set_order(self, flow: int, order: int) -> None: ...
    @property
    def now(self) -> float: ...
    def next(self) -> float:
        """Returns the time of the next completion; infinity if there is none."""

    def advance(self, now: float) -> None: ...
    def take_completed(self) -> list[int]: ...
    def rate(self, flow: int) -> float: ...
    def remaining(self, flow: int) -> float: ...
    def link_rate(self, link: int, before: int = ...) -> float: ...
    def stats(self) -> dict[str, int]: ...
    def replay(
        self, start_s: object, bytes: object, order: object, first_link: object, links: object, finish_s: object
    ) -> None:
        """Runs an open-loop trace given as arrays, and fills `finish_s`."""

# ---- Algorithm 1, incremental (_plan.pxi) ----------------------------------------------------------------------------

class PlanDelta(NamedTuple):
    """Changes since the last `PlanCore.delta()`. Apply `restored` before the others, because a number may be in use
    again."""

    pruned: list[Pruned]
    """Requests that are newly in the scavenger, or are there for another reason now."""
    infeasible: list[int]
    """Requests that could not be in time even with every port to themselves, without the pruned ones."""
    restored: list[int]
    """Requests that were pruned or infeasible in an earlier delta and now are neither, or are not active."""

class PlanCounts(NamedTuple):
    batches: int
    requests: int
    pruned: int
    infeasible: int
    drop_budget: int

class PlanCore:
    """Updates order and pruning at each event (plan.h), with the same results as mfsd/policy/pruning.py.

    Resources are numbered from 0; a load is the time in ns that it takes of its resource. ValueError, with nothing
    changed: an arrival of an active batch, an update or departure of an inactive one, a batch without requests, a
    request twice or in another batch, an unknown resource, a number that is negative or not whole. Numbers of batches
    and requests are below 2**64. Times (the clock, compute, deadlines other than NO_DEADLINE) and the sum of the loads
    promised on one resource are at most 2**61 ns.
    """

    def __init__(self, config: PolicyConfig, resources: int) -> None: ...
    def arrive(self, batch: Batch, now_ns: int) -> None: ...
    def update(self, batch: Batch, now_ns: int) -> None:
        """Replaces an active batch by its rest."""

    def depart(self, batch_id: int, now_ns: int) -> None: ...
    def hold(self) -> None:
        """Collects the following events without evaluating them. `release` evaluates all of them as one."""

    def release(self, now_ns: int) -> None: ...
    def delta(self) -> PlanDelta:
        """Returns the changes since the last call, after one event or many."""

    def plan(self) -> Plan:
        """Returns the result of the last event. Builds all of it, so use it for inspection, not after every event."""

    def counts(self) -> PlanCounts: ...
    def spend(self, requests: int) -> None:
        """Sets how many requests others have pruned. They use up drop budget from the next event on."""

    def promised(self, resource: int, red_ns: int | None = None) -> int:
        """Returns how long in ns the resource is busy with batches of this RED or an earlier one (None: with all
        batches). Pruned requests are left out."""

# ---- windows ---------------------------------------------------------------------------------------------------------

class Passage(NamedTuple):
    """One task between `enter` and `complete` or `leave`."""

    entered_ns: int
    due_ns: int
    bytes: int
    destination: int

class DestinationWindow(NamedTuple):
    key: int
    window_bytes: int
    in_flight_bytes: int
    rate_bytes_per_s: int
    """Rate at which the destination completed last; 0: unknown."""

ROOM: int
ROOM_NIC_FULL: int
ROOM_DESTINATION_FULL: int

class Window:
    """Limits the bytes under way in one direction of a NIC, in total and per destination (window.h). The caller passes
    the time."""

    def __init__(self, rate_bytes_per_s: int, *, window_ns: int = 200_000, window_bytes_min: int = 131_072) -> None: ...
    def set_rate(self, rate_bytes_per_s: int, now_ns: int) -> None: ...
    def set_drain(self, bytes_per_s: float, now_ns: int) -> None: ...
    def destination(self, key: int, now_ns: int, program: int = 0) -> int:
        """Returns the index of what one program sends to one destination; `key` and `program` are below 2**32."""

    def take_waiting(self, destination: int) -> int | None:
        """Takes a number off the list of those that found the window of this destination full; None if the list is
        empty."""

    def give(self, destination: int) -> None: ...
    def room(self, destination: int, size_bytes: int, now_ns: int, tier: int = 0) -> tuple[int, int]:
        """Returns one of the ROOM constants, and when to try again if it is ROOM_NIC_FULL."""

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
        """Returns the rate at which the destination completed last; 0 if it is unknown or too old."""

# ---- The serving simulator's step (_serving.pxi) ---------------------------------------------------------------------

class ServedCall:
    """The fields of a call that change while it is served. State 0: it waits, 1: its prompt is partly computed, 2: it
    decodes, 3: it has ended."""

    request_id: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    """Updated only when its prompt is done and when it ends; call `produced` in between."""
    prefill_left: int
    folded: int
    """Output tokens that became part of the prompt when its KV was taken; they are computed again."""
    offset: int
    """For a decode: the round of its replica less the tokens that it has produced."""
    end_round: int
    state: int
    arrival_s: float
    due_s: float
    first_due_s: float
    """Both as in mfsd.policy.serve.Request, but `first_due_s` is never None here."""
    output_tokens: float
    """Expected number."""
    service_s: float
    since_busy_s: float
    ttft_s: float | None
    tbt_s: float | None
    ttlt_s: float | None
    first_token_s: float | None
    record: Any
    request: Any
    """The call as the policy reads it; None once something has changed."""
    parked: bool
    """Whether it was paused to free its slot and waits with its KV kept."""

    def found(self, tokens: int) -> None:
        """Sets how many tokens of its prompt are in the cache, while it waits."""

    def produced(self, round_: int) -> int: ...
    def held(self, round_: int) -> int:
        """Returns its computed tokens, which have KV. The newest token of a decode is computed in the next step."""

class ServedPiece:
    """Prompt tokens of a call that a step computes."""

    def __init__(self, live: ServedCall, tokens: int) -> None: ...
    @property
    def live(self) -> Any: ...
    @property
    def tokens(self) -> int: ...

class ServedDecision:
    """What a step computes: all decodes except the paused ones, and these pieces. `set_aside` has the numbers of lost
    or relegated calls, at least of those that begin with one of these pieces."""

    def __init__(
        self, pieces: list[ServedPiece], paused: list[Any], set_aside: Collection[int], step_s: float
    ) -> None: ...
    @property
    def pieces(self) -> list[ServedPiece]: ...
    @property
    def paused(self) -> list[Any]:
        """Decodes that pause in this step."""

    @property
    def set_aside(self) -> Collection[int]: ...
    @property
    def step_s(self) -> float: ...

class ServedMemory:
    """Counts of tokens of KV."""

    held: int
    """Held by running calls."""
    parked: int
    """Held by calls that were paused to free their slots, and by KV that moves to or is awaited from another
    replica."""
    hits: int
    """Prompt tokens that were found in the cache."""
    prefixes: Any
    """The cache of prefixes that no call holds any more; its `tokens` counts them."""

class KeptQueue:
    """Makes the plans of mfsd.policy.serve.plan_step, equal to the bit, without reading the whole queue. This needs an
    order that can be kept between steps. Rows are (key, number, call). The lists are heaps, except the overdue rows,
    which are in order."""

    overdue_rows: list[tuple[float, int, Any]]
    overdue_numbers: set[int]

    def __init__(
        self,
        config: Any,
        rest_each: int,
        low: list[list[tuple[float, int, Any]]],
        high: list[list[tuple[float, int, Any]]],
    ) -> None:
        """rest_each: mfsd.policy.serve.fence.REST_STEPS. low, high: the waiting calls in the order of the least and of
        the greatest alpha, each as [rows, rows that come last because their deadline has passed]."""

    rest_steps: int
    """Number of steps that keep memory for no other call, counted from the admission of the call that had it kept."""

    def start(self, step: int, small: Any, large: Any, reserved: Any, rest_steps: int) -> None:
        """Begins at this step, with these pieces of a Pace. Memory is kept for the call `reserved`, and then for no
        other call in `rest_steps` steps."""

    @property
    def reserved_number(self) -> int | None:
        """Number of the call that memory is kept for, or None."""

    def pieces(self) -> tuple[tuple[tuple[float, ...], tuple[float, ...], int], ...]:
        """Returns (terms, inverse, steps) of both pieces of the Pace."""

    def expire(self, now_s: float) -> None:
        """Called when the first deadline of `by_due` has passed; the subclass implements it."""

    def overdue(self, now_s: float) -> None:
        """Brings the overdue rows and numbers up to date; the subclass implements it. Called in steps that begin with
        the overdue calls."""

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
        """Decodes by the due time of their next token, as of the last read; it only grows."""

class StepLoop:
    """Runs the steps of a replica. Its subclass implements what happens once per call or seldom: give_way, idle, timed,
    asked, begins, filled, ends_now; also `seconds` if step times are not linear, and noise and noise_observed if there
    is noise."""

    round: int
    """Number of steps so far. Every decode makes a token in each."""
    context: int
    """Tokens that all decodes together attend to."""
    wanted: int
    """Tokens that the fence counts: prompts of running calls and output of decodes, each token once."""
    left_tokens: int
    """Prompt tokens still to compute, of calls that wait or are partly computed."""
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
        """pace_weight: weight of the latest step in the mean step time."""

    def ruled(self, margin: float) -> None:
        """Sets the margin that estimates have from now on."""

    def begin(self, now_s: float) -> float | None:
        """Plans a step and begins it. Returns when it ends, or None if there is nothing to compute."""

    def plan(self, now_s: float) -> ServedDecision: ...
    def finish(self, now_s: float) -> list[Any]:
        """Ends the step. Returns the calls that end with it."""

    def take_seen(self) -> tuple[int, int, int, float, float] | None:
        """Returns (prefill tokens, decodes, context, pairs, seconds) of the step that has ended since the last plan,
        if there is one to learn from."""

    def token_due_s(self, live: ServedCall, made: int) -> float:
        """Returns when the next token is due after `made` tokens."""

    @property
    def waiting(self) -> dict[int, Any]: ...
    @property
    def prompts(self) -> dict[int, Any]:
        """Calls whose prompt is partly computed."""

    @property
    def decodes(self) -> dict[int, Any]: ...
    @property
    def ends(self) -> list[tuple[int, int, Any]]:
        """Decodes by the round in which they end."""

    @property
    def due(self) -> list[tuple[float, int, Any]]:
        """Decodes with a TBT by the due time of their next token, as of the last read; it only grows."""

    @property
    def chunk_sizes(self) -> dict[int, int]: ...
