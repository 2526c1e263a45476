from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromNode(_message.Message):
    __slots__ = ("hello", "report", "echo", "answer")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: Report
    echo: Echo
    answer: Answer
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., echo: _Optional[_Union[Echo, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "protocol_oldest", "node", "version", "epoch", "ports", "authority", "term", "answers", "outlook")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_OLDEST_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    OUTLOOK_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    protocol_oldest: int
    node: str
    version: str
    epoch: int
    ports: _containers.RepeatedCompositeFieldContainer[Port]
    authority: str
    term: int
    answers: bool
    outlook: bool
    def __init__(self, protocol: _Optional[int] = ..., protocol_oldest: _Optional[int] = ..., node: _Optional[str] = ..., version: _Optional[str] = ..., epoch: _Optional[int] = ..., ports: _Optional[_Iterable[_Union[Port, _Mapping]]] = ..., authority: _Optional[str] = ..., term: _Optional[int] = ..., answers: bool = ..., outlook: bool = ...) -> None: ...

class Port(_message.Message):
    __slots__ = ("number", "name", "rate_bytes_per_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RATE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    rate_bytes_per_s: int
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., rate_bytes_per_s: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("ports", "departed", "arrived", "updated", "loads", "routed", "snapshot_end", "term", "waiting", "waits_no_more", "tiers", "outcomes")
    PORTS_FIELD_NUMBER: _ClassVar[int]
    DEPARTED_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITS_NO_MORE_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    ports: _containers.RepeatedCompositeFieldContainer[Port]
    departed: _containers.RepeatedScalarFieldContainer[int]
    arrived: _containers.RepeatedCompositeFieldContainer[Batch]
    updated: _containers.RepeatedCompositeFieldContainer[Batch]
    loads: _containers.RepeatedCompositeFieldContainer[Load]
    routed: _containers.RepeatedCompositeFieldContainer[Routing]
    snapshot_end: bool
    term: int
    waiting: _containers.RepeatedCompositeFieldContainer[Waiting]
    waits_no_more: _containers.RepeatedScalarFieldContainer[int]
    tiers: Tiers
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    def __init__(self, ports: _Optional[_Iterable[_Union[Port, _Mapping]]] = ..., departed: _Optional[_Iterable[int]] = ..., arrived: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., updated: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., loads: _Optional[_Iterable[_Union[Load, _Mapping]]] = ..., routed: _Optional[_Iterable[_Union[Routing, _Mapping]]] = ..., snapshot_end: bool = ..., term: _Optional[int] = ..., waiting: _Optional[_Iterable[_Union[Waiting, _Mapping]]] = ..., waits_no_more: _Optional[_Iterable[int]] = ..., tiers: _Optional[_Union[Tiers, _Mapping]] = ..., outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ...) -> None: ...

class Tiers(_message.Message):
    __slots__ = ("tiers", "engines", "unreadable")
    TIERS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[RequestTier]
    engines: int
    unreadable: int
    def __init__(self, tiers: _Optional[_Iterable[_Union[RequestTier, _Mapping]]] = ..., engines: _Optional[int] = ..., unreadable: _Optional[int] = ...) -> None: ...

class RequestTier(_message.Message):
    __slots__ = ("name", "met", "late", "no_deadline", "aborted", "waiting", "running", "paused", "relegated", "lost", "engines", "policies")
    class PoliciesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    NO_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    RELEGATED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    name: str
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
    policies: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., met: _Optional[int] = ..., late: _Optional[int] = ..., no_deadline: _Optional[int] = ..., aborted: _Optional[int] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., paused: _Optional[int] = ..., relegated: _Optional[int] = ..., lost: _Optional[int] = ..., engines: _Optional[int] = ..., policies: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("request_id", "met")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    met: bool
    def __init__(self, request_id: _Optional[int] = ..., met: bool = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("batch_id", "unit", "compute_left_ns", "requests", "port", "size_bytes")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    unit: str
    compute_left_ns: int
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    port: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, batch_id: _Optional[int] = ..., unit: _Optional[str] = ..., compute_left_ns: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[Request, _Mapping]]] = ..., port: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("request_id", "budget_left_ns", "port", "size_bytes", "relegated")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RELEGATED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    budget_left_ns: int
    port: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    relegated: bool
    def __init__(self, request_id: _Optional[int] = ..., budget_left_ns: _Optional[int] = ..., port: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ..., relegated: bool = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("request_id", "budget_left_ns", "rank", "tokens_left", "relegated", "port", "size_bytes", "engine")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOKENS_LEFT_FIELD_NUMBER: _ClassVar[int]
    RELEGATED_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    budget_left_ns: int
    rank: int
    tokens_left: int
    relegated: bool
    port: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    engine: int
    def __init__(self, request_id: _Optional[int] = ..., budget_left_ns: _Optional[int] = ..., rank: _Optional[int] = ..., tokens_left: _Optional[int] = ..., relegated: bool = ..., port: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ..., engine: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("port", "rho", "used")
    PORT_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    port: int
    rho: float
    used: Used
    def __init__(self, port: _Optional[int] = ..., rho: _Optional[float] = ..., used: _Optional[_Union[Used, _Mapping]] = ...) -> None: ...

class Used(_message.Message):
    __slots__ = ("permille", "unscheduled_permille", "passed_permille", "bypass_permille")
    PERMILLE_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULED_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    PASSED_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    BYPASS_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    permille: _containers.RepeatedScalarFieldContainer[int]
    unscheduled_permille: int
    passed_permille: int
    bypass_permille: int
    def __init__(self, permille: _Optional[_Iterable[int]] = ..., unscheduled_permille: _Optional[int] = ..., passed_permille: _Optional[int] = ..., bypass_permille: _Optional[int] = ...) -> None: ...

class Routing(_message.Message):
    __slots__ = ("unit", "port", "size_bytes")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    unit: str
    port: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, unit: _Optional[str] = ..., port: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class Echo(_message.Message):
    __slots__ = ("stamp_ns", "epoch")
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    stamp_ns: int
    epoch: int
    def __init__(self, stamp_ns: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "reply", "last")
    ID_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    id: int
    reply: bytes
    last: bool
    def __init__(self, id: _Optional[int] = ..., reply: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class ToNode(_message.Message):
    __slots__ = ("welcome", "standby", "refusal", "order", "heartbeat", "question", "promises")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    PROMISES_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    standby: Standby
    refusal: Refusal
    order: Order
    heartbeat: Heartbeat
    question: Question
    promises: Promises
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., standby: _Optional[_Union[Standby, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., question: _Optional[_Union[Question, _Mapping]] = ..., promises: _Optional[_Union[Promises, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "authority", "term", "heartbeat_ns")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_NS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    authority: str
    term: int
    heartbeat_ns: int
    def __init__(self, protocol: _Optional[int] = ..., authority: _Optional[str] = ..., term: _Optional[int] = ..., heartbeat_ns: _Optional[int] = ...) -> None: ...

class Standby(_message.Message):
    __slots__ = ("leader", "authority", "term", "heartbeat_ns")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_NS_FIELD_NUMBER: _ClassVar[int]
    leader: str
    authority: str
    term: int
    heartbeat_ns: int
    def __init__(self, leader: _Optional[str] = ..., authority: _Optional[str] = ..., term: _Optional[int] = ..., heartbeat_ns: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "reason")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[Refusal.Code]
        PROTOCOL: _ClassVar[Refusal.Code]
        HELLO: _ClassVar[Refusal.Code]
        REPLACED: _ClassVar[Refusal.Code]
        STOPPING: _ClassVar[Refusal.Code]
    UNSPECIFIED: Refusal.Code
    PROTOCOL: Refusal.Code
    HELLO: Refusal.Code
    REPLACED: Refusal.Code
    STOPPING: Refusal.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: Refusal.Code
    reason: str
    def __init__(self, code: _Optional[_Union[Refusal.Code, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("term", "epoch", "snapshot", "batch_id", "key", "pruned", "restored_batch_id", "restored_request_id", "refused", "infeasible")
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PRUNED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    RESTORED_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    INFEASIBLE_FIELD_NUMBER: _ClassVar[int]
    term: int
    epoch: int
    snapshot: bool
    batch_id: _containers.RepeatedScalarFieldContainer[int]
    key: _containers.RepeatedScalarFieldContainer[int]
    pruned: _containers.RepeatedCompositeFieldContainer[Pruned]
    restored_batch_id: _containers.RepeatedScalarFieldContainer[int]
    restored_request_id: _containers.RepeatedScalarFieldContainer[int]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedBatch]
    infeasible: _containers.RepeatedCompositeFieldContainer[Infeasible]
    def __init__(self, term: _Optional[int] = ..., epoch: _Optional[int] = ..., snapshot: bool = ..., batch_id: _Optional[_Iterable[int]] = ..., key: _Optional[_Iterable[int]] = ..., pruned: _Optional[_Iterable[_Union[Pruned, _Mapping]]] = ..., restored_batch_id: _Optional[_Iterable[int]] = ..., restored_request_id: _Optional[_Iterable[int]] = ..., refused: _Optional[_Iterable[_Union[RefusedBatch, _Mapping]]] = ..., infeasible: _Optional[_Iterable[_Union[Infeasible, _Mapping]]] = ...) -> None: ...

class Pruned(_message.Message):
    __slots__ = ("batch_id", "request_id", "for_batch", "port", "relegated")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FOR_BATCH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RELEGATED_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    request_id: int
    for_batch: int
    port: str
    relegated: bool
    def __init__(self, batch_id: _Optional[int] = ..., request_id: _Optional[int] = ..., for_batch: _Optional[int] = ..., port: _Optional[str] = ..., relegated: bool = ...) -> None: ...

class Infeasible(_message.Message):
    __slots__ = ("batch_id", "request_id")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    request_id: int
    def __init__(self, batch_id: _Optional[int] = ..., request_id: _Optional[int] = ...) -> None: ...

class RefusedBatch(_message.Message):
    __slots__ = ("batch_id", "reason")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    reason: str
    def __init__(self, batch_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Promises(_message.Message):
    __slots__ = ("term", "port", "owed_ns", "rate_bytes_per_s")
    TERM_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    OWED_NS_FIELD_NUMBER: _ClassVar[int]
    RATE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    term: int
    port: _containers.RepeatedScalarFieldContainer[int]
    owed_ns: _containers.RepeatedScalarFieldContainer[int]
    rate_bytes_per_s: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, term: _Optional[int] = ..., port: _Optional[_Iterable[int]] = ..., owed_ns: _Optional[_Iterable[int]] = ..., rate_bytes_per_s: _Optional[_Iterable[int]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("term", "epoch", "stamp_ns")
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    term: int
    epoch: int
    stamp_ns: int
    def __init__(self, term: _Optional[int] = ..., epoch: _Optional[int] = ..., stamp_ns: _Optional[int] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("id", "request", "end")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    id: int
    request: bytes
    end: bool
    def __init__(self, id: _Optional[int] = ..., request: _Optional[bytes] = ..., end: bool = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("batches_max", "history_max", "batch_id")
    BATCHES_MAX_FIELD_NUMBER: _ClassVar[int]
    HISTORY_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    batches_max: int
    history_max: int
    batch_id: int
    def __init__(self, batches_max: _Optional[int] = ..., history_max: _Optional[int] = ..., batch_id: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("version", "address", "leads", "leader", "authority", "term", "epoch", "uptime_ns", "events", "oddities", "batches_active", "requests_active", "drop_budget", "batches", "pruned", "nodes", "ports", "core", "infeasible", "attainment", "history", "missed", "requests", "tiers")
    class OdditiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTIME_NS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ODDITIES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    DROP_BUDGET_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    PRUNED_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    CORE_FIELD_NUMBER: _ClassVar[int]
    INFEASIBLE_FIELD_NUMBER: _ClassVar[int]
    ATTAINMENT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    version: str
    address: str
    leads: bool
    leader: str
    authority: str
    term: int
    epoch: int
    uptime_ns: int
    events: int
    oddities: _containers.ScalarMap[str, int]
    batches_active: int
    requests_active: int
    drop_budget: int
    batches: _containers.RepeatedCompositeFieldContainer[BatchPlace]
    pruned: _containers.RepeatedCompositeFieldContainer[Pruned]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    ports: int
    core: str
    infeasible: _containers.RepeatedCompositeFieldContainer[Infeasible]
    attainment: Attainment
    history: History
    missed: _containers.RepeatedCompositeFieldContainer[Missed]
    requests: _containers.RepeatedCompositeFieldContainer[RequestPlace]
    tiers: _containers.RepeatedCompositeFieldContainer[TierTotal]
    def __init__(self, version: _Optional[str] = ..., address: _Optional[str] = ..., leads: bool = ..., leader: _Optional[str] = ..., authority: _Optional[str] = ..., term: _Optional[int] = ..., epoch: _Optional[int] = ..., uptime_ns: _Optional[int] = ..., events: _Optional[int] = ..., oddities: _Optional[_Mapping[str, int]] = ..., batches_active: _Optional[int] = ..., requests_active: _Optional[int] = ..., drop_budget: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[BatchPlace, _Mapping]]] = ..., pruned: _Optional[_Iterable[_Union[Pruned, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., ports: _Optional[int] = ..., core: _Optional[str] = ..., infeasible: _Optional[_Iterable[_Union[Infeasible, _Mapping]]] = ..., attainment: _Optional[_Union[Attainment, _Mapping]] = ..., history: _Optional[_Union[History, _Mapping]] = ..., missed: _Optional[_Iterable[_Union[Missed, _Mapping]]] = ..., requests: _Optional[_Iterable[_Union[RequestPlace, _Mapping]]] = ..., tiers: _Optional[_Iterable[_Union[TierTotal, _Mapping]]] = ...) -> None: ...

class TierTotal(_message.Message):
    __slots__ = ("tier", "nodes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    tier: RequestTier
    nodes: int
    def __init__(self, tier: _Optional[_Union[RequestTier, _Mapping]] = ..., nodes: _Optional[int] = ...) -> None: ...

class History(_message.Message):
    __slots__ = ("interval_ns", "intervals")
    INTERVAL_NS_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    interval_ns: int
    intervals: _containers.RepeatedCompositeFieldContainer[Interval]
    def __init__(self, interval_ns: _Optional[int] = ..., intervals: _Optional[_Iterable[_Union[Interval, _Mapping]]] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("age_ns", "met", "missed", "pruned", "infeasible", "batches", "requests", "nodes", "bytes_per_s", "unscheduled_bytes_per_s", "passed_bytes_per_s", "busiest_permille")
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    PRUNED_FIELD_NUMBER: _ClassVar[int]
    INFEASIBLE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PASSED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BUSIEST_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    age_ns: int
    met: int
    missed: int
    pruned: int
    infeasible: int
    batches: int
    requests: int
    nodes: int
    bytes_per_s: _containers.RepeatedScalarFieldContainer[int]
    unscheduled_bytes_per_s: int
    passed_bytes_per_s: int
    busiest_permille: int
    def __init__(self, age_ns: _Optional[int] = ..., met: _Optional[int] = ..., missed: _Optional[int] = ..., pruned: _Optional[int] = ..., infeasible: _Optional[int] = ..., batches: _Optional[int] = ..., requests: _Optional[int] = ..., nodes: _Optional[int] = ..., bytes_per_s: _Optional[_Iterable[int]] = ..., unscheduled_bytes_per_s: _Optional[int] = ..., passed_bytes_per_s: _Optional[int] = ..., busiest_permille: _Optional[int] = ...) -> None: ...

class Missed(_message.Message):
    __slots__ = ("request_id", "age_ns", "node")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    age_ns: int
    node: str
    def __init__(self, request_id: _Optional[int] = ..., age_ns: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class RequestPlace(_message.Message):
    __slots__ = ("request_id", "budget_left_ns", "size_bytes", "port", "port_ns")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PORT_NS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    budget_left_ns: int
    size_bytes: int
    port: str
    port_ns: int
    def __init__(self, request_id: _Optional[int] = ..., budget_left_ns: _Optional[int] = ..., size_bytes: _Optional[int] = ..., port: _Optional[str] = ..., port_ns: _Optional[int] = ...) -> None: ...

class AskRequest(_message.Message):
    __slots__ = ("request", "node")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    request: bytes
    node: str
    def __init__(self, request: _Optional[bytes] = ..., node: _Optional[str] = ...) -> None: ...

class AskReply(_message.Message):
    __slots__ = ("node", "reply", "last", "problem", "asked", "lost")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    node: str
    reply: bytes
    last: bool
    problem: str
    asked: int
    lost: int
    def __init__(self, node: _Optional[str] = ..., reply: _Optional[bytes] = ..., last: bool = ..., problem: _Optional[str] = ..., asked: _Optional[int] = ..., lost: _Optional[int] = ...) -> None: ...

class Attainment(_message.Message):
    __slots__ = ("met", "missed", "recent_met", "recent_missed", "window_ns")
    MET_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    RECENT_MET_FIELD_NUMBER: _ClassVar[int]
    RECENT_MISSED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_NS_FIELD_NUMBER: _ClassVar[int]
    met: int
    missed: int
    recent_met: int
    recent_missed: int
    window_ns: int
    def __init__(self, met: _Optional[int] = ..., missed: _Optional[int] = ..., recent_met: _Optional[int] = ..., recent_missed: _Optional[int] = ..., window_ns: _Optional[int] = ...) -> None: ...

class BatchPlace(_message.Message):
    __slots__ = ("batch_id", "unit", "requests", "red_left_ns", "nodes")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RED_LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    unit: str
    requests: int
    red_left_ns: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, batch_id: _Optional[int] = ..., unit: _Optional[str] = ..., requests: _Optional[int] = ..., red_left_ns: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node", "version", "address", "connected", "batches", "lag_ns", "silent_ns", "epochs_behind", "ports", "tiers")
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    LAG_NS_FIELD_NUMBER: _ClassVar[int]
    SILENT_NS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    node: str
    version: str
    address: str
    connected: bool
    batches: int
    lag_ns: int
    silent_ns: int
    epochs_behind: int
    ports: _containers.RepeatedCompositeFieldContainer[PortStatus]
    tiers: Tiers
    def __init__(self, node: _Optional[str] = ..., version: _Optional[str] = ..., address: _Optional[str] = ..., connected: bool = ..., batches: _Optional[int] = ..., lag_ns: _Optional[int] = ..., silent_ns: _Optional[int] = ..., epochs_behind: _Optional[int] = ..., ports: _Optional[_Iterable[_Union[PortStatus, _Mapping]]] = ..., tiers: _Optional[_Union[Tiers, _Mapping]] = ...) -> None: ...

class PortStatus(_message.Message):
    __slots__ = ("name", "rate_bytes_per_s", "rho", "used")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RATE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    name: str
    rate_bytes_per_s: int
    rho: float
    used: Used
    def __init__(self, name: _Optional[str] = ..., rate_bytes_per_s: _Optional[int] = ..., rho: _Optional[float] = ..., used: _Optional[_Union[Used, _Mapping]] = ...) -> None: ...
