"""The control protocol, version 1: what mfsctl asks the daemon, and what the daemon answers.

A stream socket at `socket.control` carries one JSON object a line. A request names the protocol version. Each gets one
line as its answer, in order. Any user who can open the socket may read; only root and the daemon's user may change
anything. Fields may be added within a version, so readers ignore fields that they do not know.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from mfsd.node.config import Mode
from mfsd.text import one_line

VERSION = 1
LINE_BYTES_MAX = 64 << 20
"""Limit of an answer. The status of as many programs as mfsd serves, with as many communicators as each can have, is
about 20 MiB long."""
REQUEST_BYTES_MAX = 1 << 16
ID_MAX = (1 << 64) - 1
"""Largest number of a request or a batch."""


def _check_id(field: str, number: int) -> None:
    """Raises ValueError for a number out of range. msgspec's own limits end at 63 bits."""
    if not 0 <= number <= ID_MAX:
        raise ValueError(f"{field} = {number}: not from 0 to {ID_MAX}")


# ---- requests ------------------------------------------------------------------------------------


class StatusRequest(Struct, frozen=True, tag_field="request", tag="status"):
    version: int = VERSION


class RulesRequest(Struct, frozen=True, tag_field="request", tag="rules"):
    version: int = VERSION


class ModeRequest(Struct, frozen=True, tag_field="request", tag="mode"):
    """Switches the mode until the daemon stops or the mode in the file changes."""

    mode: Literal["observe", "enforce"]
    version: int = VERSION


class ReloadRequest(Struct, frozen=True, tag_field="request", tag="reload"):
    version: int = VERSION


class TraceRequest(Struct, frozen=True, tag_field="request", tag="trace"):
    """Asks for the tasks that wait or are in flight now."""

    limit: int = 1000
    version: int = VERSION


class ExplainRequest(Struct, frozen=True, tag_field="request", tag="explain"):
    """Asks why a task has its place."""

    task: str
    """CLIENT:SLOT, or CLIENT:SLOT:GENERATION as in a trace."""
    version: int = VERSION


class ConfigRequest(Struct, frozen=True, tag_field="request", tag="config"):
    """Asks for the configuration in force."""

    version: int = VERSION


class WhyRequest(Struct, frozen=True, tag_field="request", tag="why"):
    """Asks what a request or a program waits for, or waited for in the last minute."""

    number: int = 0
    """Number of a request, or a process id."""
    kind: Literal["any", "request", "pid"] = "any"
    """any: a request with this number goes before a process."""
    slowest: bool = False
    """Asks about what waits longest instead."""
    layers: bool = False
    """Lists stages of the request by layer."""
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_id("number", self.number)


class RequestsRequest(Struct, frozen=True, tag_field="request", tag="requests"):
    """Asks what requests have moved, by stage and layer. The most recently used come first."""

    request_id: int = 0
    """0: all requests."""
    layers: bool = True
    """False: one row for each stage."""
    limit: int = 100
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_id("request_id", self.request_id)


class RecordRequest(Struct, frozen=True, tag_field="request", tag="record"):
    """Asks for events of the arbiter from now on.

    The reply is a `RecordStarted`, then `RecordEvents` until the client closes its writing side or the daemon ends. No
    other request may follow on this connection.
    """

    layout: int
    """The layout of events that the client understands (csrc/include/mfs/trace.h)."""
    version: int = VERSION


class FlowsRequest(Struct, frozen=True, tag_field="request", tag="flows"):
    """Asks for flows as they end, for as long as a caller waits for them.

    Only through a coordinator: on the node itself a recording has more.
    """

    stages: list[str] = []
    """Empty conditions match everything."""
    request_id: int = 0
    port: str = ""
    process: str = ""
    slow_s: float = 0.0
    version: int = VERSION


class HealthRequest(Struct, frozen=True, tag_field="request", tag="health"):
    """Asks for mfsctl doctor's findings on this node and the daemon's settings. Only through a coordinator."""

    version: int = VERSION


class QueueRequest(Struct, frozen=True, tag_field="request", tag="queue"):
    """Asks for requests that still queue at engines of this node, as the engines have announced them."""

    limit: int = 1000
    version: int = VERSION


Request = (
    StatusRequest
    | RulesRequest
    | ModeRequest
    | ReloadRequest
    | TraceRequest
    | ExplainRequest
    | WhyRequest
    | ConfigRequest
    | RequestsRequest
    | RecordRequest
    | FlowsRequest
    | HealthRequest
    | QueueRequest
)

# ---- replies -------------------------------------------------------------------------------------


class DaemonStatus(Struct, frozen=True):
    version: str
    pid: int
    epoch: int
    mode: Mode
    uptime_s: float
    socket: str
    config_file: str | None
    """None: the built-in defaults."""
    cpu_s: float
    """Processor time of the arbiter thread."""
    messages: int
    grants: int
    attached_total: int
    """Clients that have attached since the start."""
    refused: dict[str, int]
    """Attach requests refused since the start, by errno name."""
    log_lines_dropped: int
    control: str = ""
    """The socket that received the request."""
    abi: str = ""
    """MAJOR.MINOR of its shared memory layout. Daemon and client both do without what the older of them lacks."""
    max_hold_ms: float = 0.0
    """The hold budget (`arbiter.max_hold`). 0: the daemon does not report it."""


class CommunicatorStatus(Struct, frozen=True):
    """An NCCL communicator of one process, as its profiler plugin reports it a few times a second."""

    id: str
    """NCCL's hash of the communicator: the same in all its ranks."""
    name: str
    rank: int
    ranks: int
    operations: int
    called_bytes: int
    """Bytes that its operations were called with."""
    sent_bytes: int
    """Bytes that this rank sent over the network."""
    operation_bytes: dict[str, int]
    """`sent_bytes` by operation."""
    work_requests: int
    batch_bytes: int
    """The part of `sent_bytes` that belongs to a known batch."""
    batch: int | None
    """Slot of the latest batch."""
    layer: int | None


class ClientStatus(Struct, frozen=True):
    client_id: int
    pid: int
    uid: int
    process: str
    state: Literal["active", "detached"]
    detach_reason: str | None
    """Why the daemon gave the client up, as an errno name."""
    attached_s: float
    nics: list[str]
    queue_pairs: dict[str, int]
    """Open now, by role, as the client reports them."""
    held_bytes: int
    in_flight_bytes: int
    submits: int
    permits: int
    on_credit: int
    """Permits that were given without waiting, because nothing waited."""
    completes: int
    cancels: int
    posted_bytes: dict[str, int]
    """By stage, since the client attached."""
    completed_bytes: dict[str, int]
    bypassed_overflow: int
    bypassed_hold: int
    bypassed_stale: int
    hold_s: float
    """Sum over the work requests that were held."""
    torn_slots: int
    bad_messages: int
    communicators: list[CommunicatorStatus] = []
    unit: str = ""
    """The prefill replica of its batches."""
    abi: str = ""
    """MAJOR.MINOR of its shared memory layout."""


class ProcessTotals(Struct, frozen=True):
    """Totals since the daemon started over all programs of one name, including ended ones. They never fall."""

    process: str
    submits: int
    permits: int
    on_credit: int
    completes: int
    cancels: int
    posted_bytes: dict[str, int]
    """By stage."""
    completed_bytes: dict[str, int]
    bypassed_overflow: int
    bypassed_hold: int
    bypassed_stale: int
    hold_s: float
    torn_slots: int
    bad_messages: int


class ClassStatus(Struct, frozen=True):
    """One class of one NIC. Class 0 goes first."""

    held_bytes: int
    held_tasks: int
    in_flight_bytes: int
    granted_bytes: int
    grants: int
    sent_bytes: int = 0
    """Bytes of completed outgoing tasks since the daemon started."""
    received_bytes: int = 0
    """Bytes of completed incoming tasks."""


class PortStatus(Struct, frozen=True):
    """The counters of a NIC's port, where they can be read."""

    bypass_bytes_per_s: int
    """Recent outgoing rate of bytes not posted by a program with the shim on this node, but by GPUs or other programs,
    or read by peers."""
    incoming_bypass_bytes_per_s: int
    """The same for incoming bytes; it includes what peers write here."""
    bypass_bytes: dict[str, int] = {}
    """Since the daemon started, by priority; `unknown` where the port or the configuration does not tell it."""
    incoming_bypass_bytes: dict[str, int] = {}
    pauses: int | None = None
    """Pause frames sent since the daemon started. None: not counted."""
    incoming_pauses: int | None = None


class NicStatus(Struct, frozen=True):
    index: int
    name: str
    guid: str
    rate_bytes_per_s: int
    window_bytes: int
    """For each direction."""
    in_flight_bytes: int
    """Outgoing."""
    incoming_in_flight_bytes: int
    unscheduled_in_flight_bytes: int
    load: float | None
    """Outgoing share of the rate taken by what goes first (rho). None: variant mfs does not measure it."""
    incoming_load: float | None
    promotions: int
    wait_s: float
    """Time from submission to permit, summed over permits."""
    classes: list[ClassStatus]
    utilization: float = 0.0
    """Outgoing share of the rate that was really used, as a moving average. Above 1 if the rate is set too low."""
    incoming_utilization: float = 0.0
    unscheduled_bytes: int = 0
    """Completed bytes of what never waits (collectives, control) since the daemon started; counts for both
    directions."""
    passed_bytes: int = 0
    """Completed bytes of other stages without a permit: observed, let go or held too long. Counts as outgoing."""
    port: PortStatus | None = None
    """None: its counters are not read, or cannot be."""


class DeadlineStatus(Struct, frozen=True):
    """Requests that have ended, by whether they met their deadline. Each counts once."""

    met: int = 0
    missed: int = 0
    """`met` and `missed` count since the daemon started."""
    recent_met: int = 0
    recent_missed: int = 0
    """`recent_met` and `recent_missed` count within `window_s`."""
    window_s: float = 0.0
    latest_met: int = 0
    latest_missed: int = 0
    """`latest_met` and `latest_missed` count within `latest_s`, which is so short that a change shows soon."""
    latest_s: float = 0.0


class StatusReply(Struct, frozen=True, tag_field="reply", tag="status"):
    daemon: DaemonStatus
    nics: list[NicStatus]
    clients: list[ClientStatus]
    totals: list[ProcessTotals] = []
    deadlines: DeadlineStatus = DeadlineStatus()
    events: dict[str, dict[str, int]] = {}
    """Counters by family and reason: `failed_open` (the arbiter's), `ended` (announced requests, for each process and
    batch), `ledger`, `link`, `spans`."""


class RuleStatus(Struct, frozen=True):
    """A rule in force. Empty conditions match everything."""

    source: Literal["configuration", "built-in"]
    library: str
    process: str
    peer: str
    role: str
    action: str
    stage: str
    dscp: int | None
    set_role: str
    communicator: str = ""


class RulesReply(Struct, frozen=True, tag_field="reply", tag="rules"):
    rules: list[RuleStatus]


class ModeReply(Struct, frozen=True, tag_field="reply", tag="mode"):
    mode: Mode
    before: Mode


class ReloadReply(Struct, frozen=True, tag_field="reply", tag="reload"):
    config_file: str | None
    applied: list[str]
    """Keys whose new values are in force."""
    needs_restart: list[str]
    """Keys whose new values wait for a restart."""


class TaskStatus(Struct, frozen=True):
    """One task. None in a field means that it does not apply."""

    id: str
    """CLIENT:SLOT:GENERATION."""
    process: str
    nic: str
    stage: str
    state: Literal["held", "in-flight"]
    size_bytes: int
    wire_class: int
    tier: Literal["critical", "early", "last", "scavenger"]
    level: int | None
    """For the last stage in variant paper: 1 is the most urgent."""
    rli: int | None
    """For early stages; None also if the batch is not known."""
    rank: int | None
    """Rank of its batch, 0 first."""
    request_id: int | None
    batch_id: int | None
    layer: int
    pruned: bool
    waited_s: float
    """Since its submission."""


class TraceReply(Struct, frozen=True, tag_field="reply", tag="trace"):
    tasks: list[TaskStatus]
    """By NIC: those in flight first, then the others in the order in which they will go."""
    total: int
    """Number of all tasks; `tasks` has only the first of them."""


class Ahead(Struct, frozen=True):
    """A task that goes before the explained one."""

    id: str
    stage: str
    size_bytes: int
    why: str


class ExplainReply(Struct, frozen=True, tag_field="reply", tag="explain"):
    task: TaskStatus
    facts: dict[str, int | float | str | bool | None]
    """The numbers behind the decision: times in ns from now, sizes in bytes, rates in bytes/s."""
    reasons: list[str]
    """Sentences for people."""
    ahead: list[Ahead]
    """The first of the tasks that go before it, in order."""
    ahead_tasks: int
    ahead_bytes: int


class StageBytes(Struct, frozen=True):
    """What a request has moved in one stage and layer, in tasks that asked for permits."""

    stage: str
    layer: int | None
    """None: all layers together, or those beyond the 1,024 pairs that are told apart."""
    tasks: int
    submitted_bytes: int
    completed_bytes: int
    bypassed_bytes: int
    """Sent without a permit."""
    dropped_bytes: int
    """Cancelled, or lost when its program ended."""
    first_ago_s: float | None = None
    """Time since its first submission."""
    last_ago_s: float | None = None
    """Time since its latest completion. None: nothing is complete yet."""


class RequestStatus(Struct, frozen=True):
    """One request, over all processes of this node."""

    request_id: int
    batch_id: int | None
    """The latest batch that had it."""
    unit: str
    processes: list[str]
    state: Literal["open", "ended", "named"]
    """named: tasks carry its number, but no engine has announced its begin and end."""
    age_s: float
    """Since it was announced, or since its first task."""
    deadline_left_s: float | None
    """Negative: the deadline has passed. None: there is none."""
    outcome: Literal["met", "missed"] | None
    """Set once it has ended and none of its tasks is open."""
    pruned: bool
    """Whether it ever was pruned."""
    open_tasks: int
    submitted_bytes: int
    completed_bytes: int
    bypassed_bytes: int
    dropped_bytes: int
    stages: list[StageBytes]
    """By stage, then layer."""


class RequestsReply(Struct, frozen=True, tag_field="reply", tag="requests"):
    requests: list[RequestStatus]
    total: int
    """Number of all known requests; `requests` has only the first of them."""
    evicted: int
    """Accounts dropped since the daemon started to make room."""
    unaccounted_tasks: int
    """Tasks without an account: there was no room, or they had ended before they were seen."""


class ConfigValue(Struct, frozen=True):
    key: str
    """Dotted, as in the file."""
    value: str
    """As written in the file."""
    source: str
    """`default`, `command line`, `mfsctl mode`, or the file."""


class ConfigReply(Struct, frozen=True, tag_field="reply", tag="config"):
    config_file: str | None
    values: list[ConfigValue]


class WaitSeen(Struct, frozen=True):
    """A wait seen in the last minute: the longest one of a request, or of a program's tasks without a request."""

    ago_s: float
    task: str
    request_id: int | None
    stage: str
    size_bytes: int
    waited_s: float
    """Until it was seen; it may have lasted longer."""
    ahead_tasks: int
    ahead_bytes: int
    first: str
    """The first task that went before it; empty: none did."""
    rule: str
    """Why that task went before it."""


class WhyReply(Struct, frozen=True, tag_field="reply", tag="why"):
    about: str
    state: Literal["waiting", "in-flight", "idle", "ended"]
    reasons: list[str]
    """Sentences for people."""
    task: ExplainReply | None = None
    """The task that waits longest, else the one in flight for longest."""
    request: RequestStatus | None = None
    cluster: list[str] = []
    """Sentences about the cluster's order."""
    seen: list[WaitSeen] = []


class RecordStarted(Struct, frozen=True, tag_field="reply", tag="record"):
    """Both clocks were read at the same moment, to within `uncertainty_ns`."""

    node: str
    pid: int
    epoch: int
    monotonic_ns: int
    realtime_ns: int
    uncertainty_ns: int


class RecordEvents(Struct, frozen=True, tag_field="reply", tag="events"):
    """Comes a few times a second, even if nothing has happened."""

    events: bytes
    """Consecutive events of 64 bytes."""
    lost: int
    """Events lost since the recording began, because the ring was full."""
    processes: dict[int, str] = {}
    """Names of clients that were not named before."""
    units: dict[int, str] = {}
    nics: dict[int, str] = {}
    monotonic_ns: int = 0
    realtime_ns: int = 0
    """Both clocks again, which shows how far CLOCK_REALTIME was set or slewed meanwhile."""
    last: bool = False


class Flow(Struct, frozen=True):
    """One task that has ended. None: not known, since it began before the recording."""

    ended_ns: int
    """On the daemon's CLOCK_MONOTONIC."""
    node: str
    process: str
    nic: str
    incoming: bool
    stage: str
    size_bytes: int
    request_id: int | None
    batch_id: int | None
    layer: int
    wire_class: int | None
    """None: it had no permit."""
    waited_s: float | None
    took_s: float | None
    """From the permit to the end."""
    end: str
    late_s: float | None
    """Positive: it ended after its deadline."""


class FlowsReply(Struct, frozen=True, tag_field="reply", tag="flows"):
    flows: list[Flow]
    lost: int
    """Since the beginning: events that came faster than they were read, and flows that did not fit an answer."""
    realtime_offset_ns: int
    """Add it to `ended_ns` to get CLOCK_REALTIME."""


class HealthFinding(Struct, frozen=True):
    """A finding of mfsctl doctor (docs/doctor.md)."""

    severity: Literal["fail", "warn"]
    id: str
    subject: str
    reason: str
    remedy: str


class HealthReply(Struct, frozen=True, tag_field="reply", tag="health"):
    daemon_version: str
    mode: str
    verdict: str
    """The doctor's: scheduled, not scheduled or cannot tell."""
    findings: list[HealthFinding]
    realtime_ns: int
    """The node's CLOCK_REALTIME when it sent this."""


class QueuedFetch(Struct, frozen=True):
    """What a queued request will fetch from one port."""

    owner: str
    """Address of the port that has it; "" if unknown."""
    nic: str
    size_bytes: int


class QueuedRequest(Struct, frozen=True):
    request_id: int
    process: str
    deadline_left_s: float | None
    """Negative: the deadline has passed. None: there is none."""
    needed_in_s: float | None
    """Time until the first deadline among it and those behind it in its engine's order, which are served after it."""
    rank: int
    """In its engine's order: smaller goes first."""
    tokens_left: int
    """Tokens to compute until its first token. 0: not known."""
    relegated: bool
    """Its engine itself has put it behind the others."""
    pruned: bool
    fetches: list[QueuedFetch]


class QueueReply(Struct, frozen=True, tag_field="reply", tag="queue"):
    requests: list[QueuedRequest]
    """By process, then rank."""
    total: int
    """Number of all queued requests; `requests` has only the first of them."""


class ErrorReply(Struct, frozen=True, tag_field="reply", tag="error"):
    code: Literal["malformed", "version", "denied", "config", "failed", "not-found"]
    message: str


Reply = (
    StatusReply
    | RulesReply
    | ModeReply
    | ReloadReply
    | TraceReply
    | ExplainReply
    | WhyReply
    | ConfigReply
    | RequestsReply
    | RecordStarted
    | RecordEvents
    | FlowsReply
    | HealthReply
    | QueueReply
    | ErrorReply
)

# ---- lines ---------------------------------------------------------------------------------------


class ProtocolError(Exception):
    """A line that is not a message of this protocol."""

    def __init__(self, code: Literal["malformed", "version"], message: str) -> None:
        self.code = code
        super().__init__(one_line(message))


class _AnyVersion(Struct, frozen=True):
    version: int


_request: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_reply: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
_any_version = msgspec.json.Decoder(_AnyVersion)
_encoder = msgspec.json.Encoder()


def encode(message: Request | Reply) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Decodes a request. Raises ProtocolError that says what is wrong. Checks the version first."""
    try:
        version = _any_version.decode(line).version
        if version != VERSION:
            raise ProtocolError("version", f"this mfsd speaks control version {VERSION}, not {version}")
        return _request.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", f"not a request: {error}") from error


def decode_reply(line: bytes) -> Reply:
    try:
        return _reply.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", f"not a reply: {error}") from error
