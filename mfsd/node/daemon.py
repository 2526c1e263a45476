"""The node daemon: assembles arbiter, sockets and configuration, and takes them apart again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from mfsd import _native
from mfsd._native import Arbiter
from mfsd.node import abi, rules
from mfsd.node.address import Address
from mfsd.node.addresses import PortNames
from mfsd.node.admission import Admission
from mfsd.node.batches import Batches
from mfsd.node.collectives import Collectives
from mfsd.node.config import ArbiterConfig, Config, Mode, SocketConfig
from mfsd.node.config_file import ConfigError
from mfsd.node.control import (
    ClientStatus,
    ConfigReply,
    DaemonStatus,
    ExplainReply,
    ExplainRequest,
    HealthReply,
    ModeReply,
    ModeRequest,
    ProtocolError,
    QueueReply,
    QueueRequest,
    RecordRequest,
    RecordStarted,
    ReloadReply,
    RequestsReply,
    RequestsRequest,
    RulesReply,
    StatusReply,
    TraceReply,
    TraceRequest,
    WhyReply,
    WhyRequest,
)
from mfsd.node.control_server import ControlServer
from mfsd.node.descriptors import raise_limit
from mfsd.node.discovery import Discovery
from mfsd.node.effective import effective
from mfsd.node.health import Examined, Health
from mfsd.node.link import Link
from mfsd.node.loads import LoadReports
from mfsd.node.log import Log
from mfsd.node.memory import bytes_for, clients_that_fit, memory_limit_bytes
from mfsd.node.nics import NicTable, read_host_rates
from mfsd.node.notify import Notifier
from mfsd.node.options import Options
from mfsd.node.outlook import OutlookWriter
from mfsd.node.port_watch import PortWatch
from mfsd.node.questions import Questions
from mfsd.node.recorder import Recorder, Recording
from mfsd.node.reload import reloaded
from mfsd.node.requests import Client, Requests
from mfsd.node.server import AttachServer
from mfsd.node.session import Session
from mfsd.node.status import client_status, nic_statuses, rule_statuses
from mfsd.node.tiers import TierReports
from mfsd.node.totals import Totals
from mfsd.node.trace import Tracer
from mfsd.node.uplink import make_link, node_name, unit_name
from mfsd.node.values import SizeBytes
from mfsd.node.waiting import WaitingRequests
from mfsd.node.why import SAMPLE_S, Why
from mfsd.node.wire import class_dscps, class_priorities
from mfsd.policy.native import native_policy
from mfsd.policy.request_tiers import NodeTiers
from mfsd.proto.wire import TlsError

DETACH_LOOK_S = 5.0
"""How often to check for clients that the arbiter gave up, to log them."""
DESCRIPTORS = 16_384
"""With four per client, the usual soft limit of 1,024 is too small for all clients."""
FEW_CPUS = 4
"""On hosts with up to this many CPUs the arbiter is a real-time thread (csrc/arbiter/arbiter.c)."""


class Daemon:
    """One run of the daemon, from :meth:`run` until a signal ends it."""

    def __init__(
        self,
        options: Options,
        config: Config,
        address: Address,
        log: Log,
        notifier: Notifier,
        observers: Sequence[Callable[[Daemon], contextlib.AbstractContextManager[object]]] = (),
    ) -> None:
        """`observers` are entered once the daemon can answer, and left before it stops."""
        self._options = options
        self._config = config
        self._dscp = self._class_dscps(config)
        self._priorities = class_priorities(config)
        self._mode: Mode = config.mode
        self._address = address
        self._log = log
        self._notifier = notifier
        self._observers = observers
        self._started_s = time.monotonic()
        self._version = version("mfsd")
        self._stop = asyncio.Event()
        self._reported: set[int] = set()
        self._totals = Totals()
        self.examine: Callable[[], Examined] = lambda: Examined("cannot tell", [])
        """Returns the doctor's findings on this node."""
        self.read_tiers: Callable[[], NodeTiers] | None = None
        """Returns what this node's engines publish about their tiers."""
        self._health = Health(lambda: self.examine())
        self.spans: Callable[[], dict[str, int]] | None = None
        """Returns counts of an exporter of spans, by outcome."""

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT. Raises OSError or AddressError when it cannot start."""
        raise_limit(DESCRIPTORS)
        self._arbiter = arbiter = _new_arbiter(self._config)
        arbiter.start()
        try:
            arbiter.rules(rules.native(self._config.rule, self._dscp))
            arbiter.wire(self._dscp)
            await self._serve(arbiter)
        finally:
            arbiter.close()

    async def _serve(self, arbiter: Arbiter) -> None:
        config, loop = self._config, asyncio.get_running_loop()
        loop.set_exception_handler(self._defect)
        self._memory_bytes = memory_limit_bytes()
        self._admission = Admission(config.socket)
        self._limit_clients(config.socket)
        self._warn_of_one_cpu(config.arbiter)
        self._discovery = Discovery(self._log)
        self._nics = NicTable(arbiter, config.nic, self._discovery.rates, log=self._log)
        attach = self._listen(socket.SOCK_SEQPACKET, self._address.path)
        control = self._listen(socket.SOCK_STREAM, self._address.control)
        self._server = AttachServer(attach, arbiter, self._admission, self._nics, self._log, self._farewell)
        self._ports = PortWatch(
            arbiter, self._nics, lambda: self._priorities, int(config.counters.interval_ns), log=self._log
        )
        link = self._link = self._assemble(arbiter)
        self._outlook.start(loop)
        self._batches.start(loop, link)
        self._control = ControlServer(control, self, self._log)
        await self._control.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # may be pending since the configuration was read
        observing = contextlib.ExitStack()
        for observer in self._observers:
            observing.enter_context(observer(self))
        background = [loop.create_task(self._look_for_detached()), loop.create_task(self._sample_waits())]
        background.append(loop.create_task(self._ports.run()))
        background.append(loop.create_task(self._discovery.keep(lambda: self._nics.reconfigure(self._config.nic))))
        if link is not None:
            background.append(loop.create_task(self._keep_link(link)))
            if self.read_tiers is not None:
                background.append(loop.create_task(TierReports(self.read_tiers, link.tiers).run()))
        if self._notifier.watchdog_interval_s is not None:
            background.append(loop.create_task(self._watchdog(self._notifier.watchdog_interval_s)))
        for task in background:
            task.add_done_callback(self._background_ended)
        self._log.info(
            "ready",
            socket=config.socket.path,
            control=self._address.control,
            mode=self._mode,
            epoch=self._arbiter.epoch,
            config=self._options.config_file,
        )
        self._notifier.ready(f"serving {config.socket.path}, {self._mode}")
        try:
            await self._stop.wait()
        finally:
            self._notifier.stopping()
            for task in background:
                task.cancel()
            await loop.run_in_executor(None, observing.close)  # a scrape under way still needs this loop
            await self._control.close()
            self._batches.stop(loop)
            self._outlook.stop()
            arbiter.close()  # clients see DETACHED and pass through at once, before their sockets close
            self._server.close()
            self._log.info("stopped", attached_total=self._server.attached_total)

    def _assemble(self, arbiter: Arbiter) -> Link | None:
        """Makes requests, batches and what explains them. Returns the link to the coordinator, if there is one."""
        config = self._config
        names = PortNames(node_name(config.cluster), config.nic)
        self.requests = Requests(arbiter, self._client_of)
        collectives = Collectives(self._collective_bytes)
        self._outlook = OutlookWriter(arbiter)
        self._waiting = WaitingRequests(arbiter, names, self._nics.names, self._outlook)
        self._batches = Batches(
            arbiter,
            names,
            self._nics.names,
            self._unit_of,
            collectives,
            config.policy.variant,
            self._log,
            noticed=self.requests.noticed,
            outlook=self._outlook,
            waiting=self._waiting,
        )
        link = make_link(
            config.cluster,
            config.nic,
            read_host_rates(),
            names,
            self._batches,
            self._log,
            self._version,
            arbiter.epoch,
        )
        if link is not None:
            self.requests.verdict = link.request_ended
            link.beat = LoadReports(arbiter, names, self._nics.names, link, bypass=self._ports.rates).sample
            link.promises = self._outlook
            self._waiting.reports = link
        self._tracer = Tracer(
            arbiter,
            config.policy,
            lambda: self._server.sessions,
            self._nics.names,
            self._batches,
            link.why_pruned if link is not None else lambda request_id: None,
        )
        self._why = Why(
            self._tracer,
            config.policy,
            self.requests,
            self._batches,
            lambda: self._server.sessions,
            link.last_verdict if link is not None else lambda request_id: None,
        )
        self._recorder = Recorder(
            arbiter, self, node_name(config.cluster), os.getpid(), arbiter.epoch, _native.EVENT_BYTES
        )
        if link is not None:
            link.questions = Questions(
                node_name(config.cluster), self, self._recorder, _native.EVENT_BYTES, link.answer
            )
        return link

    def _listen(self, kind: socket.SocketKind, path: Path) -> socket.socket:
        config = self._config.socket
        return self._address.listen(kind, path, config.mode, config.group)

    # ---- what the control socket and signals ask -------------------------------------------------

    def status(self) -> StatusReply:
        now_s = time.monotonic()
        stats = self._arbiter.stats()
        clients = [self._client_status(session, now_s) for _, session in sorted(self._server.sessions.items())]
        return StatusReply(
            daemon=DaemonStatus(
                version=self._version,
                pid=os.getpid(),
                epoch=self._arbiter.epoch,
                mode=self._mode,
                uptime_s=now_s - self._started_s,
                socket=self._config.socket.path,
                control=str(self._address.control),
                abi=abi.DAEMON,
                max_hold_ms=self._config.arbiter.max_hold_ns / 1e6,
                config_file=str(self._options.config_file) if self._options.config_file else None,
                cpu_s=stats["cpu_ns"] / 1e9,
                messages=stats["messages"],
                grants=stats["grants"],
                attached_total=self._server.attached_total,
                refused=dict(self._server.refused),
                log_lines_dropped=self._log.dropped,
            ),
            nics=nic_statuses(self._arbiter, self._nics.count, self._ports.status),
            clients=clients,
            totals=self._totals.with_living(clients),
            deadlines=self.requests.deadlines(),
            events=self._events(),
        )

    def _client_status(self, session: Session, now_s: float) -> ClientStatus:
        return client_status(
            session,
            self._arbiter.client_stats(session.client_id),
            self._arbiter.communicators(session.client_id),
            now_s,
            self._unit(session),
        )

    def _unit_of(self, client_id: int) -> str:
        session = self._server.sessions.get(client_id)
        return unit_name(self._config.cluster, session.process if session is not None else "")

    def _collective_bytes(self, unit: str) -> Counter[int]:
        """Bytes that the unit's processes on this node have moved in stage 2, by NIC index."""
        moved: Counter[int] = Counter()
        for client_id in self._server.sessions:
            if self._unit_of(client_id) == unit:
                moved.update(dict(enumerate(self._arbiter.client_stats(client_id)["collective_bytes"])))
        return moved

    def _client_of(self, client_id: int) -> Client | None:
        session = self._server.sessions.get(client_id)
        return None if session is None else Client(session.process, self._unit(session))

    def _unit(self, session: Session) -> str:
        return unit_name(self._config.cluster, session.process)

    def _events(self) -> dict[str, dict[str, int]]:
        totals = self._arbiter.ledger_totals()
        return {
            "failed_open": self._arbiter.opened(),
            "ended": dict(self.requests.ends),
            "ledger": {"evicted": totals["evicted"], "unaccounted": totals["unaccounted"]},
            "link": {"order_lost": self._batches.orders_lost},
            **({"spans": self.spans()} if self.spans is not None else {}),
        }

    def _farewell(self, session: Session) -> None:
        self.requests.client_gone(session.client_id, Client(session.process, self._unit(session)))
        self._waiting.client_gone(session.client_id)
        self._batches.client_gone(session.client_id)
        status = self._client_status(session, time.monotonic())
        self._why.client_gone(session.pid, session.client_id, session.process, status.permits)
        self._totals.add(status)

    def rules(self) -> RulesReply:
        return RulesReply(rule_statuses(self._config.rule, self._dscp))

    def trace(self, request: TraceRequest) -> TraceReply:
        return self._tracer.trace(request)

    def list_requests(self, request: RequestsRequest) -> RequestsReply:
        return self.requests.reply(request)

    def queue(self, request: QueueRequest) -> QueueReply:
        return self._waiting.reply(request, self.processes())

    def record(self, request: RecordRequest) -> tuple[RecordStarted, Recording]:
        """Raises ProtocolError or TooMany."""
        if request.layout != _native.EVENT_LAYOUT:
            raise ProtocolError("version", f"this mfsd writes events of layout {_native.EVENT_LAYOUT}")
        return self._recorder.start()

    def processes(self) -> dict[int, str]:
        """Names of clients, including the last ones that ended."""
        living = {client_id: session.process for client_id, session in self._server.sessions.items()}
        return {**{client_id: client.process for client_id, client in self.requests.gone.items()}, **living}

    def units(self) -> dict[int, str]:
        return {client_id: unit_name(self._config.cluster, name) for client_id, name in self.processes().items()}

    def nics(self) -> dict[int, str]:
        return dict(self._nics.names())

    def explain(self, request: ExplainRequest) -> ExplainReply:
        """Raises LookupError if there is no such task."""
        return self._tracer.explain(request)

    def configuration(self) -> ConfigReply:
        return effective(self._config, self._options, self._mode)

    def why(self, request: WhyRequest) -> WhyReply:
        """Raises LookupError if nothing is known about it."""
        return self._why.answer(request)

    async def health(self) -> HealthReply:
        verdict, findings = await self._health.read()
        return HealthReply(self._version, self._mode, verdict, findings, time.time_ns())

    def switch_mode(self, request: ModeRequest) -> ModeReply:
        before = self._mode
        self._set_mode(request.mode)
        return ModeReply(mode=self._mode, before=before)

    def reload(self) -> ReloadReply:
        """Takes over what can change in a running daemon. Raises ConfigError if it cannot; then nothing has changed."""
        old = self._config
        new, applied, waiting = reloaded(old, self._options.configuration(), "daemon")
        dscp = self._class_dscps(new)
        if dscp != self._dscp and not any(key.startswith("wire.") for key in applied):
            applied.append("wire.policy_file")  # its text has changed, not its name
        self._dscp, self._priorities = dscp, class_priorities(new)
        self._arbiter.rules(rules.native(new.rule, self._dscp))
        self._arbiter.wire(self._dscp)
        self._limit_clients(new.socket)
        self._nics.reconfigure(new.nic)
        self._log.level = new.log_level
        if new.mode != old.mode:  # a switch by mfsctl outlives reloads that do not change the mode
            self._set_mode(new.mode)
        self._config = new
        self._log.info("reloaded", applied=",".join(applied) or "nothing", needs_restart=",".join(waiting) or "nothing")
        file = self._options.config_file
        return ReloadReply(config_file=str(file) if file else None, applied=applied, needs_restart=waiting)

    def _class_dscps(self, config: Config) -> tuple[int, ...]:
        """Raises ConfigError."""
        return class_dscps(config, str(self._options.config_file or "built-in defaults"))

    def _warn_of_one_cpu(self, config: ArbiterConfig) -> None:
        """Warns of a single CPU: there a busy real-time arbiter blocks the thread that writes its late heartbeats."""
        cpus = config.cpus.numbers() or os.sched_getaffinity(0)
        real_time = config.spin_ns == 0 or os.sysconf("SC_NPROCESSORS_ONLN") <= FEW_CPUS
        if len(cpus) == 1 and real_time:
            self._log.warning(
                "one-cpu-for-heartbeats",
                cpu=min(cpus),
                consequence="programs take a long turn of the arbiter for its death, and post what they hold",
                remedy="name two CPUs in arbiter.cpus, or let mfsd use two",
            )

    def _limit_clients(self, config: SocketConfig) -> None:
        """Admits as many clients as configured and as memory holds: beyond its limit the kernel ends the daemon."""
        room = clients_that_fit(self._memory_bytes, config.clients_max)
        self._admission.config = config
        self._admission.room = room if room < config.clients_max else None
        if self._memory_bytes is not None and self._admission.room is not None:
            self._log.warning(
                "memory-limits-clients",
                limit=SizeBytes(self._memory_bytes),
                clients=room,
                clients_max=config.clients_max,
                remedy=f"give mfsd {SizeBytes(bytes_for(config.clients_max))}, or lower socket.clients_max",
            )

    def _set_mode(self, mode: Mode) -> None:
        self._arbiter.mode(_native.Mode[mode.upper()])
        self._log.info("mode", mode=mode, before=self._mode)
        self._mode = mode

    def _hangup(self) -> None:
        self._notifier.reloading()
        try:
            self.reload()
        except ConfigError as error:
            self._log.error("reload-failed", problem=error, remedy="the old configuration stays in force")
        except OSError as error:
            self._log.error("reload-failed", problem=error)
        self._notifier.ready(f"serving {self._config.socket.path}, {self._mode}")

    def _defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Logs an uncaught exception: it costs one event, never the daemon."""
        self._log.error("defect", where=context.get("message"), error=repr(context.get("exception")))

    # ---- in the background -----------------------------------------------------------------------

    async def _look_for_detached(self) -> None:
        while True:
            await asyncio.sleep(DETACH_LOOK_S)
            self._reported &= self._server.sessions.keys()
            for client_id, session in list(self._server.sessions.items()):
                reason = self._arbiter.client_stats(client_id)["detach_reason"]
                if reason and client_id not in self._reported:
                    self._reported.add(client_id)
                    self._log.warning(
                        "client-detached", client=client_id, pid=session.peer.pid, reason=os.strerror(-reason)
                    )

    async def _sample_waits(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            if self._server.sessions:
                self._why.sample()

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        """Logs an error in a background task now, rather than when the process ends. Permits go on without it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error(
                "background-task-ended", task=getattr(task.get_coro(), "__qualname__", ""), problem=repr(error)
            )

    async def _keep_link(self, link: Link) -> None:
        """Runs the link. Without it this node orders its own batches, so nothing else ends with it."""
        try:
            await link.run()
        except (TlsError, ImportError) as error:
            self._log.error(
                "no-link", problem=error, remedy="repair [cluster] and restart; batches are ordered locally"
            )

    async def _watchdog(self, interval_s: float) -> None:
        while True:
            self._arbiter.stats()  # waits for the arbiter thread, so that a hung one is not reported as alive
            self._notifier.alive()
            await asyncio.sleep(interval_s)


def _new_arbiter(config: Config) -> Arbiter:
    arbiter, policy = config.arbiter, config.policy
    return Arbiter(
        policy=native_policy(policy),
        mode=_native.Mode[config.mode.upper()],
        heartbeat_ns=arbiter.heartbeat_ns,
        stale_after_ns=arbiter.stale_after_ns,
        max_hold_ns=arbiter.max_hold_ns,
        window_ns=arbiter.window_ns,
        window_bytes_min=arbiter.window_bytes_min,
        quiet_ns=arbiter.quiet_ns,
        gate_max_ns=arbiter.gate_max_ns,
        spin_ns=arbiter.spin_ns,
        torn_slot_ns=arbiter.torn_slot_ns,
        load_time_constant_ns=policy.load_time_constant_ns,
        rate_default_bytes_per_s=arbiter.rate_default_bytes_per_s,
        tasks_max=arbiter.tasks_max,
        cpus=arbiter.cpus.numbers(),
    )
