"""What an operator sets for the gateway, in one TOML file."""

from __future__ import annotations

import ipaddress
import math
import urllib.parse
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from mfsd.policy.route import QueueOrder, Role, RouteConfig, Router
from mfsd.proto.wire import TlsFiles, address_problem
from mfsd.serve.learn.model import ModelError, Predictor
from mfsd.serve.learn.model import read as read_model
from mfsd.serve.settings import NO_TIER, Settings, SettingsError, Tier, check_tiers, explained

REQUESTS_MAX: Final = 256
COUNT_MAX: Final = 1 << 20
BYTES_MAX: Final = 1 << 40


def _check_count(field: str, value: int, lowest: int, highest: int = COUNT_MAX) -> None:
    if not lowest <= value <= highest:
        raise ValueError(f"{field} is {value}: use {lowest} to {highest}")


def _check_listen(listen: str) -> None:
    if address_problem(listen) is not None:
        raise ValueError(f"listen is {listen!r:.120}: use HOST:PORT, with an IPv6 address in brackets")


def _check_url(field: str, url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        good = good and not parts.query and not parts.fragment and parts.path in ("", "/")
    except ValueError:  # a port that is none
        good = False
    if not good:
        raise ValueError(f"{field} is {url!r:.120}: use http://HOST:PORT")


def _check_picked(number: int, replica: ReplicaSettings) -> None:
    """Checks a replica for use by a proxy, which needs addresses and sends each request to one of them."""
    if replica.role is not Role.BOTH:
        raise ValueError(
            f"replicas[{number}].role is {replica.role.value!r}: with ext_proc.listen use both, since a proxy has one "
            "endpoint for each request"
        )
    host = urllib.parse.urlsplit(replica.url).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not replica.each_address:
            raise ValueError(
                f"replicas[{number}].url is {replica.url!r:.120}: with ext_proc.listen use an address in place of a "
                "name, or each_address = true"
            ) from None


def _check_key(number: int, replica: ReplicaSettings) -> None:
    try:
        key_headers(replica)
    except ValueError as error:
        raise ValueError(f"replicas[{number}].{error}") from None


def _check_model(path: str) -> None:
    try:
        Predictor(read_model(Path(path)))
    except ModelError as error:
        raise ValueError(f"predict.model: {error}") from None


class Connector(str, Enum):
    """How prefill instances hand KV to decode instances."""

    NIXL = "nixl"
    """What the prefill instance answered goes to the decode instance."""
    MOONCAKE = "mooncake"
    """Both are given one transfer's name, and the decode instance where the prefill instance is."""


class Sleep(str, Enum):
    """By whose API an engine is put to sleep and woken."""

    VLLM = "vllm"
    """`/sleep` and `/wake_up`."""
    SGLANG = "sglang"
    """`/release_memory_occupation` and `/resume_memory_occupation`."""


class ReplicaSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine."""

    url: str
    """Where its OpenAI API is, for example `http://10.0.0.1:8000`."""
    name: str = ""
    """In metrics and answers; empty: host and port of the url."""
    role: Role = Role.BOTH
    """prefill and decode: the two halves of requests, by `[disaggregation]`; both: whole requests."""
    models: list[str] = []
    """That it serves; empty: asked of its `/v1/models`."""
    tiers: list[str] = []
    """That it is reserved for; empty: all."""
    requests_max: int = REQUESTS_MAX
    """Requests that it is given at a time; more wait in the gateway. vLLM's `--max-num-seqs` and some to wait there."""
    kv_tokens: int | None = None
    """Tokens of the longest prompt that it takes; unset: its `max_model_len` and the KV memory in its `/metrics`."""
    port: str = ""
    """Name of its NIC port in the coordinator's `/v1/ports`, for example `10.1.0.7`; empty: unknown. Where prefill and
    decode instances have one, the decode instance is chosen first, and its NIC is named to both: they must run with
    MFS."""
    api_key_file: str = ""
    """File with the key that the engine asks for (vLLM's `--api-key`), for what the gateway asks it itself, such as
    `/v1/models`; requests have their clients' keys. Read with each poll."""
    each_address: bool = False
    """Each address of the url's host is a replica of its own, looked up with every poll: for a headless Service."""
    engine_id: str = ""
    """Of a prefill instance with MooncakeConnector: its `engine_id`."""
    bootstrap: str = ""
    """Of a prefill instance with MooncakeConnector: the URL of its bootstrap server."""
    command: list[str] = []
    """That starts the engine on this machine, one text a word, for example `["vllm", "serve", "m", "--port", "8001"]`:
    it runs while requests want it, by `[residency]`. Empty: another program sees to it."""
    memory_bytes: int = 0
    """That an engine with a `command` takes of `residency.memory_bytes`."""
    sleep: Sleep | None = None
    """How an engine with a `command` sleeps in place of being stopped: vllm (`--enable-sleep-mode`, and
    `VLLM_SERVER_DEV_MODE=1` in its environment) or sglang (`--enable-memory-saver` and `--enable-weights-cpu-backup`).
    Unset: it does not."""
    weights_bytes: int = 0
    """That its weights take of `residency.host_memory_bytes` from its first sleep to its end, those of all its
    accelerators together."""
    sleeping_bytes: int = 0
    """That it keeps of `memory_bytes` while it sleeps: its context and graphs."""

    def __post_init__(self) -> None:
        _check_url("url", self.url)
        if self.bootstrap:
            _check_url("bootstrap", self.bootstrap)
        _check_count("requests_max", self.requests_max, 1)
        if self.kv_tokens is not None:
            _check_count("kv_tokens", self.kv_tokens, 1, 1 << 31)
        for field in ("port", "engine_id", "bootstrap"):
            if self.each_address and getattr(self, field):
                raise ValueError(f"{field} belongs to one engine: leave it out with each_address = true")
        self._check_command()
        self._check_sleep()

    def _check_sleep(self) -> None:
        for field in ("weights_bytes", "sleeping_bytes"):
            value = getattr(self, field)
            _check_count(field, value, 0, BYTES_MAX * 64)
            if value and self.sleep is None:
                raise ValueError(
                    f"{field} is {value}: it is for engines that sleep, so set sleep, too, or leave it out"
                )
        if self.sleep is None:
            return
        if not self.command:
            raise ValueError(
                f"sleep is {self.sleep.value!r}: the gateway puts only its own engines to sleep; add command"
            )
        if self.role is not Role.BOTH:
            raise ValueError(
                f"sleep is {self.sleep.value!r}: an engine of role {self.role.value} has registered its KV memory with "
                "NICs, and sleeping would unmap it; leave it out"
            )
        if not self.weights_bytes:
            raise ValueError(
                "weights_bytes is 0: an engine that sleeps has its weights in host memory; give their size"
            )
        if 0 < self.memory_bytes < self.weights_bytes + self.sleeping_bytes:
            raise ValueError(
                f"memory_bytes is {self.memory_bytes}: use at least weights_bytes and sleeping_bytes, which are "
                f"{self.weights_bytes + self.sleeping_bytes} together"
            )

    def _check_command(self) -> None:
        _check_count("memory_bytes", self.memory_bytes, 0, BYTES_MAX * 64)
        if not self.command:
            return
        if not all(self.command) or any("\0" in word for word in self.command):
            raise ValueError("command has an empty word or a zero byte: use a list of the program's words")
        if not self.models:
            raise ValueError("models is missing: an engine with a command cannot be asked before it runs")
        if self.each_address:
            raise ValueError("command belongs to one engine: leave it out with each_address = true")

    @property
    def shown_name(self) -> str:
        return self.name or urllib.parse.urlsplit(self.url).netloc

    def at(self, address: str) -> ReplicaSettings:
        """Of one of its addresses."""
        parts = urllib.parse.urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = f"[{address}]" if ":" in address else address
        name = f"{self.name}-{address}" if self.name else ""
        return msgspec.structs.replace(self, url=f"{parts.scheme}://{host}:{port}", name=name, each_address=False)

    @property
    def endpoint(self) -> str:
        """Host and port, for a proxy."""
        parts = urllib.parse.urlsplit(self.url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Routing(RouteConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which replica gets a request."""

    router: Router = Router.LOCALITY
    """For whole requests and prefills: least-loaded, sticky, prefix, locality or transfer."""
    decode: Router = Router.OWED
    """For decodes: owed, least-loaded or sticky."""


class Admission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to requests that no replica may have now."""

    order: QueueOrder = QueueOrder.PRIORITY
    """They leave the queue in this order: fcfs, edf (deadline) or priority (importance, then deadline)."""
    queue_max: int = 1024
    """Requests that wait. One more: the last in order is answered 429 with Retry-After."""
    wait_max_s: float = 30.0
    """After that time in the queue a request is answered 429, too."""
    requests_max: dict[str, int] = {}
    """Requests of a tier that are at engines at a time, by the tier's name; requests without one are "default"."""
    body_max_bytes: int = 33_554_432
    """Larger requests are answered 413."""

    def __post_init__(self) -> None:
        _check_count("queue_max", self.queue_max, 0)
        _check_count("body_max_bytes", self.body_max_bytes, 1024, BYTES_MAX)
        if not (math.isfinite(self.wait_max_s) and 0 < self.wait_max_s <= 86_400):
            raise ValueError(f"wait_max_s is {self.wait_max_s}: use seconds above 0 and up to 86400")
        for tier, most in self.requests_max.items():
            _check_count(f"requests_max.{tier}", most, 1)


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the state of replicas and ports is from."""

    poll_ms: int = 500
    """Between two readings of each engine's `/metrics`, and of ports at a coordinator that has no stream of them."""
    lost_after_s: float = 60.0
    """A replica that is down, and from which nothing has come for so long, is lost: no poll was answered, `/metrics` or
    `/health`, and no part of a request. Its requests end with `engine_lost`."""
    coordinators: list[str] = []
    """Web addresses of coordinators (`coordinator.web` of theirs), for example `http://coord-1:7480`. The one that
    leads tells what ports owe."""

    def __post_init__(self) -> None:
        _check_count("poll_ms", self.poll_ms, 10, 3_600_000)
        if not (math.isfinite(self.lost_after_s) and 0.1 <= self.lost_after_s <= 86_400):
            raise ValueError(f"lost_after_s is {self.lost_after_s}: use seconds from 0.1 to 86400")
        for number, url in enumerate(self.coordinators):
            _check_url(f"coordinators[{number}]", url)


class Kv(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large KV is, for the routers that count bytes."""

    bytes_per_token: int = 0
    """Of one token in all layers; 0: unknown, so that KV counts nothing."""
    shared: bool = False
    """Replicas fetch from each other what one of them has cached (a KV store, or a connector that does)."""

    def __post_init__(self) -> None:
        _check_count("bytes_per_token", self.bytes_per_token, 0, 1 << 30)


class Disaggregation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prefill and decode on different instances: as soon as there are replicas of both roles."""

    connector: Connector = Connector.NIXL
    """Of the engines: nixl (NixlConnector, also inside of MfsConnector) or mooncake (MooncakeConnector)."""


class Residency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When engines that have a `command` run."""

    memory_bytes: int = 0
    """That they share: the one that was used the longest ago, and has no requests, sleeps or stops for one that is
    wanted. 0: they do not for each other."""
    host_memory_bytes: int = 0
    """Host memory for the weights of engines that sleep. Where it is full, the one of them that was used the longest
    ago stops for the next one."""
    idle_s: float = 0.0
    """An engine sleeps, or stops if it cannot sleep, after so long without a request; 0: never for that."""
    start_max_s: float = 900.0
    """One that does not answer so long after its start is stopped. Its requests wait so much longer than
    `admission.wait_max_s`."""
    stop_max_s: float = 30.0
    """One that has not ended so long after SIGTERM is killed."""
    sleep_max_s: float = 120.0
    """One that takes longer to fall asleep, or to wake, is stopped; requests start it anew."""

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "host_memory_bytes"):
            _check_count(field, getattr(self, field), 0, BYTES_MAX * 64)
        for field, least in (("idle_s", 0.0), ("start_max_s", 0.1), ("stop_max_s", 0.0), ("sleep_max_s", 0.1)):
            if not least <= getattr(self, field) <= 86_400:
                raise ValueError(f"{field} is {getattr(self, field)}: use seconds from {least:g} to 86400")


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the gateway shows of itself."""

    listen: str = "127.0.0.1:8081"
    """Host and port to serve `/metrics` to Prometheus, and `/status.json` to `mfsctl gateway status`; every client that
    reaches it may read names, addresses and load of replicas; empty: no such service."""

    def __post_init__(self) -> None:
        if self.listen:
            _check_listen(self.listen)

    @property
    def host_and_port(self) -> tuple[str, int]:
        return _host_and_port(self.listen)


class Predict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long answers will be, learned from requests that have ended."""

    model: str = ""
    """File that `mfsctl learn` wrote. Requests that do not name `expected_output_tokens` get it from there, never more
    than their own limit; needs LightGBM (`mfsd[learn]`). Empty: none is predicted."""
    record: str = ""
    """File to which each request that has ended is added, for `mfsctl learn --requests`: lengths, role and tool use,
    no text. At 64 MiB it becomes FILE.1 in place of the one before. Each gateway needs its own. Empty: none is
    recorded."""

    def __post_init__(self) -> None:
        for field in ("model", "record"):
            if "\0" in getattr(self, field):
                raise ValueError(f"{field} has a zero byte: use the path of a file")


class ExtProc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An endpoint picker for a proxy (Envoy, a Kubernetes gateway), beside `listen`."""

    listen: str = ""
    """Host and port to serve Envoy's external processing; empty: not served."""
    certificate: str = ""
    """PEM file that proxies are shown; empty: no TLS."""
    key: str = ""
    """Its key."""
    ca: str = ""
    """PEM file of who has signed the certificates of proxies; empty: they show none."""

    def __post_init__(self) -> None:
        if self.listen:
            _check_listen(self.listen)
        if bool(self.certificate) != bool(self.key):
            missing = "key" if self.certificate else "certificate"
            raise ValueError(f"{missing} is missing: certificate and key belong together")
        if self.ca and not self.certificate:
            raise ValueError(f"ca is {self.ca!r:.120}: add certificate and key, without which there is no TLS")

    @property
    def tls(self) -> TlsFiles | None:
        if not self.certificate:
            return None
        return TlsFiles(ca=Path(self.ca) if self.ca else None, certificate=Path(self.certificate), key=Path(self.key))


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gateway's whole configuration."""

    replicas: list[ReplicaSettings]
    """One table `[[replicas]]` an engine."""
    listen: str = "127.0.0.1:8080"
    """Host and port to serve."""
    lame_duck_s: float = 0.0
    """So long after SIGTERM it still takes requests, while `/health` answers 503: balancers and proxies need that long
    to send them elsewhere."""
    drain_s: float = 30.0
    """Then it takes none, and those that it has may go on for so long; what is left ends with an error
    (`gateway_stopped`)."""
    route: Routing = Routing()
    admission: Admission = Admission()
    state: State = State()
    kv: Kv = Kv()
    disaggregation: Disaggregation = Disaggregation()
    residency: Residency = Residency()
    metrics: Metrics = Metrics()
    predict: Predict = Predict()
    ext_proc: ExtProc = ExtProc()
    default: Tier = Tier()
    """What requests without a tier are promised: `ttft_ms`, `tbt_ms`, `ttlt_ms`, `importance`."""
    tiers: dict[str, Tier] = {}
    """The same for each tier: `[tiers.NAME]`."""

    def __post_init__(self) -> None:
        if not self.replicas:
            raise ValueError("replicas is empty: add a table [[replicas]] with a url")
        _check_listen(self.listen)
        for field in ("lame_duck_s", "drain_s"):
            if not 0.0 <= getattr(self, field) <= 86_400:
                raise ValueError(f"{field} is {getattr(self, field)}: use seconds from 0 to 86400")
        names = [replica.shown_name for replica in self.replicas]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"replicas: two replicas have the name {name!r}: give each a name of its own")
        roles = {replica.role for replica in self.replicas}
        if (Role.PREFILL in roles) != (Role.DECODE in roles):
            raise ValueError("replicas: prefill and decode instances need each other: add the other role")
        if self.route.router is Router.OWED:
            raise ValueError("route.router is 'owed', which is only for route.decode: use transfer")
        if self.route.decode not in (Router.OWED, Router.LEAST_LOADED, Router.STICKY):
            raise ValueError(f"route.decode is {self.route.decode.value!r}: use owed, least-loaded or sticky")
        check_tiers(self.tiers)
        for tier in self.admission.requests_max:
            if tier != NO_TIER and tier not in self.tiers:
                raise ValueError(f"admission.requests_max has {tier!r}: add a table [tiers.{tier}], or use {NO_TIER}")
        for number, replica in enumerate(self.replicas):
            self._check_replica(number, replica)
            if self.ext_proc.listen:
                _check_picked(number, replica)

    def _check_replica(self, number: int, replica: ReplicaSettings) -> None:
        for tier in replica.tiers:
            if tier not in self.tiers:
                raise ValueError(f"replicas[{number}].tiers has {tier!r}: add a table [tiers.{tier}]")
        if self.disaggregation.connector is Connector.MOONCAKE and replica.role is Role.PREFILL:
            for field in ("engine_id", "bootstrap"):
                if not getattr(replica, field):
                    raise ValueError(f"replicas[{number}].{field} is missing: MooncakeConnector needs it")
        most = self.residency.memory_bytes
        if most and replica.command and not 0 < replica.memory_bytes <= most:
            raise ValueError(
                f"replicas[{number}].memory_bytes is {replica.memory_bytes}: use 1 to residency.memory_bytes, {most}"
            )
        host = self.residency.host_memory_bytes
        if replica.sleep is not None and replica.weights_bytes > host:
            raise ValueError(
                f"residency.host_memory_bytes is {host}: use at least replicas[{number}].weights_bytes, "
                f"{replica.weights_bytes}, so that it can sleep, or leave out its sleep"
            )

    @property
    def host_and_port(self) -> tuple[str, int]:
        return _host_and_port(self.listen)

    @property
    def serve(self) -> Settings:
        """What `mfsd.serve.promise.Reader` reads."""
        return Settings(default=self.default, tiers=self.tiers)


def _host_and_port(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def key_in(file: Path) -> str:
    """ValueError."""
    try:
        key = file.read_text().strip()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}; name a file that this process may read") from None
    except UnicodeDecodeError:
        key = ""
    if not key or not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError(f"{file}: use a file that contains only the key")
    return key


def key_headers(replica: ReplicaSettings) -> dict[str, str]:
    """Returns the headers with which the gateway itself asks an engine. ValueError."""
    if not replica.api_key_file:
        return {}
    try:
        return {"authorization": f"Bearer {key_in(Path(replica.api_key_file))}"}
    except ValueError as error:
        raise ValueError(f"api_key_file is {error}") from None


def read_file(path: Path) -> GatewaySettings:
    """SettingsError."""
    try:
        settings = msgspec.toml.decode(path.read_bytes(), type=GatewaySettings)
        for number, replica in enumerate(settings.replicas):
            _check_key(number, replica)
        if settings.predict.model:
            _check_model(settings.predict.model)
        return settings
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; name a file that this process may read") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise SettingsError(f"{path}: {explained(error, GatewaySettings)}") from None
