"""What can be configured: the structs are the schema of the daemon's TOML file.

Every key has a default that is right for NCCL and Mooncake, so no file is needed.
:mod:`mfsd.node.config_file` reads a file into them; :mod:`mfsd.node.reference` writes
``docs/configuration.md`` and the default file from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, defstruct, field

from mfsd._native import POLICY_PARAMETERS
from mfsd.node.schema import RELOAD, RESTART, between, doc, table
from mfsd.node.values import (
    CpuList,
    DurationNs,
    FileMode,
    GroupId,
    HostPort,
    PeerNetwork,
    PortAddress,
    RateBytesPerS,
    SizeBytes,
    UserId,
)
from mfsd.policy.config import PolicyConfig

Mode = Literal["off", "observe", "enforce"]
Role = Literal["any", "nccl-data", "nccl-cts", "nccl-flush", "kv", "bulk"]
Stage = Literal["control", "reuse", "collective", "p2d", "background"]
LogLevel = Literal["debug", "info", "warning", "error"]


class SocketConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where programs reach the daemon, and who may."""

    path: Annotated[
        str,
        doc("unix socket that programs attach to; containers mount its folder, read-only", reload=RESTART),
    ] = "/run/mfs/mfsd.sock"
    control: Annotated[
        str,
        doc(
            "unix socket that mfsctl asks, in a folder that no container mounts; `.lock` is added for the daemon's "
            "lock; empty: that of `path` with `-control` added to its folder, e.g. `/run/mfs-control/mfsd.sock`",
            reload=RESTART,
        ),
    ] = ""
    mode: Annotated[FileMode, doc("permissions of the sockets", reload=RESTART)] = FileMode(0o660)
    group: Annotated[GroupId | None, doc("group that owns the sockets; unset: the daemon's own", reload=RESTART)] = None
    allowed_uids: Annotated[
        list[UserId] | None,
        doc("users that may attach; root and the daemon's user always may; unset: every user who can open the socket"),
    ] = None
    allowed_gids: Annotated[list[GroupId] | None, doc("groups whose members may attach, beside allowed_uids")] = None
    clients_max: Annotated[
        int,
        doc(
            "processes attached at once, 3 MiB each at most; a daemon whose control group has less memory than 96 MiB "
            "and that serves fewer and says so",
            ge=1,
            le=1024,
        ),
    ] = 256
    clients_per_container: Annotated[
        int, doc("processes of one pod or container attached at once, whatever their users", ge=1, le=1024)
    ] = 64
    clients_per_uid: Annotated[
        int, doc("processes of one user attached at once, outside of containers", ge=1, le=1024)
    ] = 128
    attaches_per_s: Annotated[
        int, doc("attach requests of one container, or one user outside of them, per second", ge=1, le=10_000)
    ] = 200


class ArbiterConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The native thread that grants permits."""

    heartbeat_ns: Annotated[
        DurationNs, doc("how often the daemon shows programs that it lives", between(DurationNs, "1ms", "1s"))
    ] = field(name="heartbeat", default=DurationNs.parse("10ms"))
    stale_after_ns: Annotated[
        DurationNs,
        doc(
            "a heartbeat older than this means the daemon is gone and held requests are posted; "
            "at least twice the heartbeat",
            between(DurationNs, "2ms", "10s"),
        ),
    ] = field(name="stale_after", default=DurationNs.parse("40ms"))
    max_hold_ns: Annotated[
        DurationNs,
        doc(
            "for how long a transfer may stand still for permits, all its parts together, before it goes on without; "
            "never more than a quarter of MC_TRANSFER_TIMEOUT where a program has it, nor, for Mooncake's store, than "
            "a quarter of its lease (MFS_STORE_LEASE_MS, 5000 where a program has none)",
            between(DurationNs, "1ms", "5s"),
        ),
    ] = field(name="max_hold", default=DurationNs.parse("250ms"))
    window_ns: Annotated[
        DurationNs,
        doc(
            "what the NIC itself still has to send in each direction, as time at its rate: what a collective may find "
            "ahead of it",
            between(DurationNs, "1us", "1s"),
        ),
    ] = field(name="window", default=DurationNs.parse("200us"))
    window_bytes_min: Annotated[
        SizeBytes,
        doc("the window is never smaller", between(SizeBytes, "4kib", "1gib")),
    ] = field(name="window_min", default=SizeBytes.parse("128kib"))
    quiet_ns: Annotated[
        DurationNs,
        doc(
            "a silence between collectives in which held flows keep off the link; at most a twelfth of the time in "
            "which the link is free is spent so, and less where collectives do not come in it",
            between(DurationNs, "0ns", "1s"),
        ),
    ] = field(name="quiet", default=DurationNs.parse("200us"))
    gate_max_ns: Annotated[
        DurationNs,
        doc(
            "collectives close a direction to held flows for no longer than this",
            between(DurationNs, "100us", "1s"),
        ),
    ] = field(name="gate_max", default=DurationNs.parse("2ms"))
    spin_ns: Annotated[
        DurationNs,
        doc(
            "longest busy wait before the thread sleeps; on hosts of up to four CPUs it never waits so",
            between(DurationNs, "0ns", "10ms"),
        ),
    ] = field(name="spin", default=DurationNs.parse("50us"))
    cpus: Annotated[
        CpuList,
        doc(
            "CPUs that the thread, and the one that writes its heartbeats when it is late, may use: two at least; "
            "empty: any"
        ),
    ] = CpuList()
    torn_slot_ns: Annotated[
        DurationNs,
        doc(
            "a message that a program began and did not finish is skipped after this",
            between(DurationNs, "1ms", "10s"),
        ),
    ] = field(name="torn_slot", default=DurationNs.parse("10ms"))
    rate_default_bytes_per_s: Annotated[
        RateBytesPerS,
        doc("rate of a NIC whose own is unknown", between(RateBytesPerS, "1mbit", "10tbit")),
    ] = field(name="rate_default", default=RateBytesPerS.parse("100gbit"))
    tasks_max: Annotated[int, doc("tasks queued over all programs", ge=64, le=1_048_576)] = 65_536


_POLICY = PolicyConfig()


def _duration_key(name: str) -> tuple[str, Any, Any]:
    """A time of the policy as a key: a duration, with the native core's default and limits."""
    parameter = POLICY_PARAMETERS.get(name)
    least = f"{parameter.least}ns" if parameter is not None else "1ns"
    default = DurationNs(getattr(_POLICY, name))
    return (
        name,
        Annotated[DurationNs, doc("", between(DurationNs, least, "3600s"))],
        field(name=name.removesuffix("_ns"), default=default),
    )


if TYPE_CHECKING:
    PolicyKeys = PolicyConfig
else:
    PolicyKeys = defstruct(
        "PolicyKeys",
        [_duration_key(name) for name in PolicyConfig.__struct_fields__ if name.endswith("_ns")],
        bases=(PolicyConfig,),
        namespace={"__doc__": "The policy's parameters as the file has them: times are durations."},
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


class WireConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How classes are marked in packets: with the DSCPs of the fabric policy, which configures hosts and switches, too.
    Fabrics differ, so nothing is marked by default."""

    profile: Annotated[
        str,
        doc(
            "profile of the fabric policy whose DSCPs the classes have (`mfsctl switch policy` lists them); empty: no "
            "class has one"
        ),
    ] = ""
    policy_file: Annotated[
        str,
        doc("policy file with that profile, read again on reload; empty: the one that comes with MFS"),
    ] = ""


class MetricsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What monitoring systems read."""

    listen: Annotated[
        HostPort | None,
        doc(
            "address that serves `/metrics` to Prometheus, e.g. `127.0.0.1:9464`; every client that reaches it "
            "may read program names and byte counts; unset: no such service"
        ),
    ] = None


class CountersConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counters of the NICs' ports: what goes past MFS, posted by GPUs or by programs without the shim, is seen in them
    alone. They correct estimates; nothing waits for them."""

    interval_ns: Annotated[
        DurationNs,
        doc(
            "how often they are read, a twentieth of a core at most; `0ns`: never",
            between(DurationNs, "0ns", "10s"),
        ),
    ] = field(name="interval", default=DurationNs.parse("50ms"))


class TelemetryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spans of requests for OpenTelemetry."""

    otlp: Annotated[
        str,
        doc(
            "receiver of OTLP over HTTP, e.g. `http://collector:4318`; needs `pip install mfsd[otel]`; empty: as "
            "`OTEL_EXPORTER_OTLP_ENDPOINT` says, else none"
        ),
    ] = ""


class NicConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the daemon should believe about a NIC, whatever the port says."""

    rate_bytes_per_s: Annotated[
        RateBytesPerS | None,
        doc(
            "rate of the port, or the share of it that MFS may plan with; needed unless `port` is set",
            between(RateBytesPerS, "1mbit", "10tbit"),
        ),
    ] = field(name="rate", default=None)
    port: Annotated[
        str | None,
        doc(
            "device whose port this virtual function or subfunction uses, with which it shares one window; unset: the "
            "one in the host's sysfs, which does not show functions of other network namespaces"
        ),
    ] = None
    address: Annotated[
        PortAddress | None,
        doc("address by which other nodes reach the port; unset: the one in the device's GID table"),
    ] = None


class RuleConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one kind of queue pair is treated. Rules are tried in order, before the built-in ones; the first
    match wins.

    A condition that is left out matches everything.
    """

    library: Annotated[str, doc("part of the file name of the library that created the queue pair, e.g. `libnccl`")] = (
        ""
    )
    process: Annotated[str, doc("part of the program's name")] = ""
    communicator: Annotated[
        str,
        doc(
            "part of the name of NCCL's communicator (`ncclConfig_t.commName`); needs the profiler plugin",
            max_length=31,
        ),
    ] = ""
    peer: Annotated[PeerNetwork | None, doc("remote address or network, e.g. `10.1.0.0/16`")] = None
    role: Annotated[Role, doc("role that the shim found from the queue pair's capabilities")] = "any"
    action: Annotated[Literal["pass", "hold"], doc("`pass`: post at once; `hold`: wait for a permit")]
    stage: Annotated[Stage, doc("what the flows are for: decides their priority")] = "background"
    dscp: Annotated[
        Annotated[int, Meta(ge=0, le=63)] | None, doc("DSCP of the queue pair's packets; unset: unchanged")
    ] = None
    wire_class: Annotated[
        Annotated[int, Meta(ge=0, le=7)] | None,
        doc("class whose DSCP in `wire.profile` is used, instead of `dscp`"),
    ] = field(name="class", default=None)
    set_role: Annotated[Role, doc("role to record for the queue pair; `any`: the one found")] = "any"


class ClusterConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How this node's daemon reaches the coordinators."""

    coordinators: Annotated[
        list[HostPort],
        doc("every coordinator; none: batches are ordered on this node alone", max_length=16),
    ] = []
    node: Annotated[str, doc("name of this node, unique in the cluster; empty: the host's name", max_length=253)] = ""
    unit: Annotated[
        str,
        doc(
            "prefill replica that this node's programs belong to, the same on all of its nodes; empty: each program's "
            "name on this node is one",
            max_length=253,
        ),
    ] = ""
    serve_status: Annotated[
        list[str],
        doc(
            "folders in which this node's engines publish their status (`MFS_SERVE_STATUS`), which coordinators get by "
            "tier; empty: that variable's, else the user's own; for root those of all users",
            max_length=64,
        ),
    ] = []
    ttl_ns: Annotated[
        DurationNs,
        doc(
            "how long the last order holds without a sign of a leader; then batches are ordered locally and none "
            "is pruned. At least three of the coordinator's heartbeats: a shorter one is prolonged to that",
            between(DurationNs, "500ms", "1000s"),
        ),
    ] = field(name="ttl", default=DurationNs.parse("5s"))
    ca: Annotated[str, doc("PEM file with the authority of the coordinators' certificates; set: mutual TLS")] = ""
    certificate: Annotated[str, doc("PEM file with this node's certificate, which carries the node's name")] = ""
    key: Annotated[str, doc("PEM file with its key")] = ""
    server_name: Annotated[
        str, doc("name in the coordinators' certificates; empty: the host that `coordinators` names")
    ] = ""


class CoordinatorConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For `mfsd --coordinator`; other daemons do not read it."""

    listen: Annotated[HostPort, doc("where to serve; `[::]` is every address of the host")] = HostPort("[::]:7400")
    advertise: Annotated[
        HostPort | None,
        doc("address that daemons and mfsctl are given; unset: the host's name and the port of `listen`"),
    ] = None
    etcd: Annotated[
        list[HostPort],
        doc("endpoints of etcd, for more than one coordinator; none: this one leads alone", max_length=16),
    ] = []
    etcd_ca: Annotated[str, doc("PEM file with the authority of etcd's certificates; set: mutual TLS with etcd")] = ""
    etcd_certificate: Annotated[str, doc("PEM file with the certificate for etcd")] = ""
    etcd_key: Annotated[str, doc("PEM file with its key")] = ""
    lease_ns: Annotated[
        DurationNs,
        doc(
            "a leader that is gone is replaced after this; etcd takes whole seconds and, by default, at least two",
            between(DurationNs, "1s", "60s"),
        ),
    ] = field(name="lease", default=DurationNs.parse("2s"))
    heartbeat_ns: Annotated[
        DurationNs, doc("how often the leader tells daemons that it lives", between(DurationNs, "50ms", "10s"))
    ] = field(name="heartbeat", default=DurationNs.parse("1s"))
    grace_ns: Annotated[
        DurationNs,
        doc(
            "how long the batches of a daemon that is gone stay in the order",
            between(DurationNs, "0ns", "1000s"),
            reload=("coordinator",),
        ),
    ] = field(name="grace", default=DurationNs.parse("5s"))
    rate_default_bytes_per_s: Annotated[
        RateBytesPerS,
        doc("rate of a port that no daemon has declared", between(RateBytesPerS, "1mbit", "10tbit")),
    ] = field(name="rate_default", default=RateBytesPerS.parse("100gbit"))
    web: Annotated[
        HostPort | None,
        doc(
            "address that serves a page with the cluster's state to browsers, e.g. `127.0.0.1:7480`; every "
            "client that reaches it may read it; unset: none"
        ),
    ] = None
    ca: Annotated[
        str,
        doc("PEM file with the authority of daemons' certificates; set: mutual TLS, and theirs carry the nodes' names"),
    ] = ""
    certificate: Annotated[str, doc("PEM file with this coordinator's certificate")] = ""
    key: Annotated[str, doc("PEM file with its key")] = ""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    mode: Annotated[
        Mode,
        doc(
            "`enforce`: hold and permit; `observe`: count and time, never hold; `off`: the shim does nothing",
            reload=("daemon",),
        ),
    ] = "enforce"
    log_level: Annotated[LogLevel, doc("least severe lines written to standard error", reload=RELOAD)] = "info"
    socket: Annotated[SocketConfig, table("daemon")] = field(default_factory=SocketConfig)
    arbiter: Annotated[ArbiterConfig, table()] = field(default_factory=ArbiterConfig)
    policy: Annotated[PolicyKeys, table("coordinator")] = field(default_factory=PolicyKeys)
    wire: Annotated[WireConfig, table("daemon")] = field(default_factory=WireConfig)
    metrics: Annotated[MetricsConfig, table()] = field(default_factory=MetricsConfig)
    counters: Annotated[CountersConfig, table()] = field(default_factory=CountersConfig)
    telemetry: Annotated[TelemetryConfig, table()] = field(default_factory=TelemetryConfig)
    cluster: Annotated[ClusterConfig, table()] = field(default_factory=ClusterConfig)
    coordinator: Annotated[CoordinatorConfig, table()] = field(default_factory=CoordinatorConfig)
    nic: Annotated[dict[str, NicConfig], table("daemon")] = {}
    rule: Annotated[list[RuleConfig], table("daemon", max_length=48)] = []
