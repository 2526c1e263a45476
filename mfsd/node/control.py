"""What mfsctl asks the daemon, and what it answers: the control protocol, version 1.

A stream socket at `socket.control` carries one JSON object a line. A request names the protocol version; the
answer to each is one line, in order. Reading is for every user who can open the socket; changing is for root
and the daemon's user. Fields may be added within a version, so readers ignore what they do not know.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from mfsd.node.config import Mode
from mfsd.text import one_line

VERSION = 1
LINE_BYTES_MAX = 64 << 20
"""Of an answer. The status of as many programs as mfsd serves, with as many communicators as each can have, is some
20 MiB."""
REQUEST_BYTES_MAX = 1 << 16
ID_MAX = (1 << 64) - 1
"""Of a request or a batch."""


def _check_id(field: str, number: int) -> None:
    """ValueError. msgspec's own limits end at 63 bits."""
    if not 0 <= number <= ID_MAX:
        raise ValueError(f"{field} = {number}: not from 0 to {ID_MAX}")


# ---- requests ------------------------------------------------------------------------------------


class StatusRequest(Struct, frozen=True, tag_field="request", tag="status"):
    version: int = VERSION


class RulesRequest(Struct, frozen=True, tag_field="request", tag="rules"):
    version: int = VERSION


class ModeRequest(Struct, frozen=True, tag_field="request", tag="mode"):
    """Switches the mode until the daemon stops or the file's own mode changes."""

    mode: Literal["observe", "enforce"]
    version: int = VERSION


class ReloadRequest(Struct, frozen=True, tag_field="request", tag="reload"):
    version: int = VERSION


class TraceRequest(Struct, frozen=True, tag_field="request", tag="trace"):
    """The tasks that wait or are in flight now."""

    limit: int = 1000
    version: int = VERSION


class ExplainRequest(Struct, frozen=True, tag_field="request", tag="explain"):
    """Why a task has its place."""

    task: str
    """CLIENT:SLOT, or CLIENT:SLOT:GENERATION as a trace lists it."""
    version: int = VERSION


class ConfigRequest(Struct, frozen=True, tag_field="request", tag="config"):
    """The configuration in force."""

    version: int = VERSION


class WhyRequest(Struct, frozen=True, tag_field="request", tag="why"):
    """What a request or a program waits for, or waited for in the last minute."""

    number: int = 0
    """Of a request, or a process id."""
    kind: Literal["any", "request", "pid"] = "any"
    """any: a request of this number goes before a process."""
    slowest: bool = False
    """Instead: what waits longest."""
    layers: bool = False
    """Its request's stages by layer."""
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_id("number", self.number)


class RequestsRequest(Struct, frozen=True, tag_field="request", tag="requests"):
    """What requests have moved, by stage and layer; those used last come first."""

    request_id: int = 0
    """0: all of them."""
    layers: bool = True
    """False: one row for each stage."""
    limit: int = 100
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_id("request_id", self.request_id)


class RecordRequest(Struct, frozen=True, tag_field="request", tag="record"):
    """Events of the arbiter from now on: a `RecordStarted`, then `RecordEvents` until the client closes its writing
    side or the daemon ends. No other request may follow on this connection."""

    layout: int
    """Of events, as the client understands them (csrc/include/mfs/trace.h)."""
    version: int = VERSION


class FlowsRequest(Struct, frozen=True, tag_field="request", tag="flows"):
    """Flows as they end, as long as a caller waits for them. Only through a coordinator: on the node itself a
    recording has more."""

    stages: list[str] = []
    """Empty conditions match everything."""
    request_id: int = 0
    port: str = ""
    process: str = ""
    slow_s: float = 0.0
    version: int = VERSION


class HealthRequest(Struct, frozen=True, tag_field="request", tag="health"):
    """What mfsctl doctor says on this node, and how its daemon is set. Only through a coordinator."""

    version: int = VERSION


class QueueRequest(Struct, frozen=True, tag_field="request", tag="queue"):
    """Requests that still queue at engines of this node, as those have announced them."""

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
    """None: built-in defaults."""
    cpu_s: float
    """Processor time of the arbiter thread."""
    messages: int
    grants: int
    attached_total: int
    """Clients since start."""
    refused: dict[str, int]
    """Attach requests refused since start, by errno name."""
    log_lines_dropped: int
    control: str = ""
    """The socket that was asked."""
    abi: str = ""
    """MAJOR.MINOR of the shared memory's layout that it speaks; with a client both do without what the older lacks."""
    max_hold_ms: float = 0.0
    """The hold budget (`arbiter.max_hold`); 0: it does not say."""


class CommunicatorStatus(Struct, frozen=True):
    """An NCCL communicator of one process, as its profiler plugin reports it a few times a second."""

    id: str
    """NCCL's hash of it: the same in all its ranks."""
    name: str
    rank: int
    ranks: int
    operations: int
    called_bytes: int
    """With which they were called."""
    sent_bytes: int
    """By this rank, over the network."""
    operation_bytes: dict[str, int]
    """The same by operation."""
    work_requests: int
    batch_bytes: int
    """Of those sent, of a known batch."""
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
    """errno name: why the daemon gave the client up."""
    attached_s: float
    nics: list[str]
    queue_pairs: dict[str, int]
    """Open now, by role, as the client reports it."""
    held_bytes: int
    in_flight_bytes: int
    submits: int
    permits: int
    on_credit: int
    """Of the permits: those given without waiting, since nothing waited."""
    completes: int
    cancels: int
    posted_bytes: dict[str, int]
    """By stage, since the client attached."""
    completed_bytes: dict[str, int]
    bypassed_overflow: int
    bypassed_hold: int
    bypassed_stale: int
    hold_s: float
    """Summed over the requests that were held."""
    torn_slots: int
    bad_messages: int
    communicators: list[CommunicatorStatus] = []
    unit: str = ""
    """Prefill replica that its batches belong to."""
    abi: str = ""
    """MAJOR.MINOR of the shared memory's layout that it speaks."""


class ProcessTotals(Struct, frozen=True):
    """Since the daemon started, over all programs of one name, ended ones included. Never falls."""

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
    """One class of one NIC; class 0 goes first."""

    held_bytes: int
    held_tasks: int
    in_flight_bytes: int
    granted_bytes: int
    grants: int
    sent_bytes: int = 0
    """Completed by tasks that went out, since the daemon started."""
    received_bytes: int = 0
    """Completed by tasks whose bytes came in."""


class PortStatus(Struct, frozen=True):
    """What the counters of a NIC's port tell, where they can be read."""

    bypass_bytes_per_s: int
    """Going out, of late, and not posted by a program with the shim on this node: by GPUs, by other programs, or read
    by peers."""
    incoming_bypass_bytes_per_s: int
    """Coming in, likewise; also what peers write here."""
    bypass_bytes: dict[str, int] = {}
    """Since the daemon started, by priority; `unknown` where the port or the configuration does not tell."""
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
    """Of either direction."""
    in_flight_bytes: int
    """Going out."""
    incoming_in_flight_bytes: int
    unscheduled_in_flight_bytes: int
    load: float | None
    """Of the outgoing direction: share of the rate taken by what goes first (rho). None: variant mfs measures none."""
    incoming_load: float | None
    promotions: int
    wait_s: float
    """From submission to permit, summed over permits."""
    classes: list[ClassStatus]
    utilization: float = 0.0
    """Share of the rate that was really used going out, as a moving average; above 1 where the rate is set too low."""
    incoming_utilization: float = 0.0
    unscheduled_bytes: int = 0
    """Completed by what never waits (collectives, control), since the daemon started; it counts for both directions."""
    passed_bytes: int = 0
    """Completed in other stages without a permit: observed, let go or held too long. It counts as going out."""
    port: PortStatus | None = None
    """None: its counters are not read, or cannot be."""


class DeadlineStatus(Struct, frozen=True):
    """Requests that have ended, by whether they met their deadline; each counts once."""

    met: int = 0
    missed: int = 0
    """Both since the daemon started."""
    recent_met: int = 0
    recent_missed: int = 0
    """Both within `window_s`."""
    window_s: float = 0.0
    latest_met: int = 0
    latest_missed: int = 0
    """Both within `latest_s`: so short that a change shows soon."""
    latest_s: float = 0.0


class StatusReply(Struct, frozen=True, tag_field="reply", tag="status"):
    daemon: DaemonStatus
    nics: list[NicStatus]
    clients: list[ClientStatus]
    totals: list[ProcessTotals] = []
    deadlines: DeadlineStatus = DeadlineStatus()
    events: dict[str, dict[str, int]] = {}
    """What only grows, by family and reason: `failed_open` (the arbiter's own), `ended` (announced requests, for each
    process and batch), `ledger`, `link`, `spans`."""


class RuleStatus(Struct, frozen=True):
    """A rule in force; empty conditions match everything."""

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
    """One task. None: it has no such thing."""

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
    """Of the last stage in variant paper: 1 is the most urgent."""
    rli: int | None
    """Of the early stages; None also where its batch is not known."""
    rank: int | None
    """Of its batch, 0 first."""
    request_id: int | None
    batch_id: int | None
    layer: int
    pruned: bool
    waited_s: float
    """Since it was submitted."""


class TraceReply(Struct, frozen=True, tag_field="reply", tag="trace"):
    tasks: list[TaskStatus]
    """By NIC; in flight first, then in the order in which they will go."""
    total: int
    """So many there are; `tasks` holds the first of them."""


class Ahead(Struct, frozen=True):
    """A task that goes before the one that is explained."""

    id: str
    stage: str
    size_bytes: int
    why: str


class ExplainReply(Struct, frozen=True, tag_field="reply", tag="explain"):
    task: TaskStatus
    facts: dict[str, int | float | str | bool | None]
    """The numbers that went in; times in ns from now, sizes in bytes, rates in bytes/s."""
    reasons: list[str]
    """Sentences for people."""
    ahead: list[Ahead]
    """The first of those that go before it, in their order."""
    ahead_tasks: int
    ahead_bytes: int


class StageBytes(Struct, frozen=True):
    """What a request has moved in one stage and layer, in tasks that asked for permits."""

    stage: str
    layer: int | None
    """None: all layers together, or those beyond the 1,024 pairs that are distinguished."""
    tasks: int
    submitted_bytes: int
    completed_bytes: int
    bypassed_bytes: int
    """Sent without a permit."""
    dropped_bytes: int
    """Cancelled, or its program ended."""
    first_ago_s: float | None = None
    """Since it was first asked for."""
    last_ago_s: float | None = None
    """Since something of it was complete last; None: nothing is yet."""


class RequestStatus(Struct, frozen=True):
    """One request, in all processes of this node."""

    request_id: int
    batch_id: int | None
    """The last that it was seen in."""
    unit: str
    processes: list[str]
    state: Literal["open", "ended", "named"]
    """named: its tasks carry its number, but no engine has announced when it begins and ends."""
    age_s: float
    """Since it was announced, or its first task."""
    deadline_left_s: float | None
    """Below 0: it has passed. None: there is none."""
    outcome: Literal["met", "missed"] | None
    """Once it has ended and nothing of it is open."""
    pruned: bool
    """It was, at some time."""
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
    """So many are known; `requests` holds the first of them."""
    evicted: int
    """Accounts that made room since the daemon started: theirs are gone."""
    unaccounted_tasks: int
    """On no account: there was no room, or they had ended before they were seen."""


class ConfigValue(Struct, frozen=True):
    key: str
    """Dotted, as in the file."""
    value: str
    """As it is written in the file."""
    source: str
    """`default`, `command line`, `mfsctl mode`, or the file."""


class ConfigReply(Struct, frozen=True, tag_field="reply", tag="config"):
    config_file: str | None
    values: list[ConfigValue]


class WaitSeen(Struct, frozen=True):
    """A wait that was seen in the last minute: the longest of a request, or of what a program asked for without one."""

    ago_s: float
    task: str
    request_id: int | None
    stage: str
    size_bytes: int
    waited_s: float
    """Until it was seen; it may have been longer."""
    ahead_tasks: int
    ahead_bytes: int
    first: str
    """The first of those that went before it; empty: none did."""
    rule: str
    """Why that one did."""


class WhyReply(Struct, frozen=True, tag_field="reply", tag="why"):
    about: str
    state: Literal["waiting", "in-flight", "idle", "ended"]
    reasons: list[str]
    """Sentences for people."""
    task: ExplainReply | None = None
    """The one that waits longest, else the one that is under way longest."""
    request: RequestStatus | None = None
    cluster: list[str] = []
    """Sentences on the cluster's order."""
    seen: list[WaitSeen] = []


class RecordStarted(Struct, frozen=True, tag_field="reply", tag="record"):
    """Both clocks were read at one moment, to within `uncertainty_ns`."""

    node: str
    pid: int
    epoch: int
    monotonic_ns: int
    realtime_ns: int
    uncertainty_ns: int


class RecordEvents(Struct, frozen=True, tag_field="reply", tag="events"):
    """Comes a few times a second, also when nothing has happened."""

    events: bytes
    """One after the other, 64 bytes each."""
    lost: int
    """Since the recording began: they found the ring full."""
    processes: dict[int, str] = {}
    """Names of clients that were not named before."""
    units: dict[int, str] = {}
    nics: dict[int, str] = {}
    monotonic_ns: int = 0
    realtime_ns: int = 0
    """Both clocks again: how far the second has been set or slewed meanwhile."""
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
    """Above 0: it ended after its deadline."""


class FlowsReply(Struct, frozen=True, tag_field="reply", tag="flows"):
    flows: list[Flow]
    lost: int
    """Since the beginning: events that came faster than they were read, and flows that were too many for an answer."""
    realtime_offset_ns: int
    """To be added to `ended_ns` for CLOCK_REALTIME."""


class HealthFinding(Struct, frozen=True):
    """As mfsctl doctor has it (docs/doctor.md)."""

    severity: Literal["fail", "warn"]
    id: str
    subject: str
    reason: str
    remedy: str


class HealthReply(Struct, frozen=True, tag_field="reply", tag="health"):
    daemon_version: str
    mode: str
    verdict: str
    """Of the doctor: scheduled, not scheduled or cannot tell."""
    findings: list[HealthFinding]
    realtime_ns: int
    """The node's CLOCK_REALTIME, read when this was sent."""


class QueuedFetch(Struct, frozen=True):
    """What a request that queues will fetch from one port."""

    owner: str
    """Address of the port that has it; "": not known."""
    nic: str
    size_bytes: int


class QueuedRequest(Struct, frozen=True):
    request_id: int
    process: str
    deadline_left_s: float | None
    """Below 0: it has passed. None: there is none."""
    needed_in_s: float | None
    """The first deadline of those from it on in its engine's order, which serves them after it."""
    rank: int
    """In the order of its engine: smaller goes first."""
    tokens_left: int
    """To compute until its first token; 0: not known."""
    relegated: bool
    """Its engine has put it behind the others itself."""
    pruned: bool
    fetches: list[QueuedFetch]


class QueueReply(Struct, frozen=True, tag_field="reply", tag="queue"):
    requests: list[QueuedRequest]
    """By process, then rank."""
    total: int
    """So many queue; `requests` holds the first of them."""


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
    """ProtocolError says what is wrong; a foreign version is recognised before anything else is read."""
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
