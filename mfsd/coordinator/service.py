"""The service: streams of daemons on one side, the cluster's state on the other.

Everything runs on one asyncio loop, so an event is handled completely before the next one. A stream's writer takes what
the state has for its daemon when the stream is ready; changes in between are merged.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import msgspec

from mfsd.coordinator import messages
from mfsd.coordinator.cluster import Cluster
from mfsd.coordinator.election import Electorate, Logger, Role
from mfsd.coordinator.history import History
from mfsd.coordinator.ports import PortsExhausted
from mfsd.coordinator.relay import NotAsked, Questions
from mfsd.coordinator.settings import Settings
from mfsd.coordinator.stream import Context, Refused, Session, check_ports, read_hello
from mfsd.coordinator.turns import Turns
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.wire import PROTOCOL

SILENT_HEARTBEATS = 3
SILENT_MIN_NS = 1_000_000_000
"""A daemon that is silent for this many heartbeats, and for this long, counts as lost."""
WAITING_PER_STEP = 64
PROMISES_S = 0.02
PROMISES_SHARE = 0.05
"""Promises are sent at most every PROMISES_S, and take at most this share of the time."""
REMEMBER_S = 5.0
"""Interval of the samples for the history."""


class Service:
    def __init__(
        self,
        settings: Settings,
        electorate: Electorate,
        log: Logger,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.settings = settings
        self._electorate = electorate
        self._log = log
        self._clock_ns = clock_ns
        self._started_ns = clock_ns()
        self._turns = Turns()
        self._judging = False
        self._promises_wanted = asyncio.Event()
        """Set when what is owed at some port may have changed."""
        self.watchers: set[Callable[[], object]] = set()
        """Called on the same occasion, and on a new role."""
        self._ticks_wanted = asyncio.Event()
        """Set when something has happened after which a tick may be due."""
        self.sessions: dict[str, Session] = {}
        self.cluster: Cluster | None = None
        """None while another coordinator leads."""
        self.past = History()
        """The last hour, also while another coordinator leads."""
        self.questions = Questions(lambda: [s for s in self.sessions.values() if s.welcomed_term])

    # ---- roles -----------------------------------------------------------------------------------

    def role_changed(self, role: Role) -> None:
        """Called by the election. A new leader starts without batches: every daemon reports its own."""
        if role.leads:
            self._log.info("leads", term=role.term, authority=role.authority)
            settings = self.settings
            self.cluster = Cluster(settings.policy, settings.rate_default_bytes_per_s, settings.grace_ns, self.past)
        else:
            if self.cluster is not None or role.leader:
                self._log.info("stands-by", leader=role.leader or "unknown", term=role.term)
            self.cluster = None
        self._notify_watchers()
        for session in self.sessions.values():
            self._greet(session)

    def _greet(self, session: Session) -> None:
        role = self._electorate.role
        heartbeat_ns = self.settings.heartbeat_ns
        session.welcomed_term = session.unanswered = 0
        session.control.clear()
        self.questions.left(session.node)
        if self.cluster is not None and self._electorate.valid():
            try:
                ports = {port.name: port.rate_bytes_per_s for port in session.hello.ports}
                self.cluster.connect(session.node, ports, self._clock_ns())
                self._ticks_wanted.set()
                session.ports = []
                session.promises.clear()
                self._number_ports(session, session.hello.ports)
            except PortsExhausted as error:
                session.end(pb.Refusal.HELLO, str(error))
                return
            session.welcomed_term = role.term
            welcome = pb.Welcome(protocol=PROTOCOL, authority=role.authority, term=role.term, heartbeat_ns=heartbeat_ns)
            session.send(pb.ToNode(welcome=welcome))
            self.questions.joined(session)
        else:
            session.send(self._standby())

    def _standby(self) -> pb.ToNode:
        role = self._electorate.role
        leader = "" if role.leads else role.leader
        return pb.ToNode(
            standby=pb.Standby(
                leader=leader, authority=role.authority, term=role.term, heartbeat_ns=self.settings.heartbeat_ns
            )
        )

    # ---- streams ---------------------------------------------------------------------------------

    async def link(self, _requests: object, context: Context) -> None:
        """Handles one stream from hello to end."""
        session: Session | None = None
        tasks: list[asyncio.Task[None]] = []
        try:
            session = await read_hello(context, self.settings.tls is not None)
            self._add(session)
            session.reader = asyncio.create_task(self._read(session))
            tasks = [session.reader, asyncio.create_task(self._write(session))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():  # a reader that waits for a silent daemon is cancelled
                    task.result()
        except Refused as refused:
            name = session.node if session else "unknown"
            self._log.warning("daemon-refused", node=name, address=context.peer(), reason=refused)
            refusal = pb.Refusal(code=refused.code, reason=str(refused))
            with contextlib.suppress(grpc.aio.UsageError, asyncio.InvalidStateError, grpc.RpcError):
                await context.write(pb.ToNode(refusal=refusal).SerializeToString())
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # the call may be cancelled during this wait
                if session is not None:
                    self._remove(session)

    def _add(self, session: Session) -> None:
        before = self.sessions.get(session.node)
        if before is not None:
            before.end(
                pb.Refusal.REPLACED,
                f"node {session.node} has connected again, from {session.address}: "
                "give each daemon its own [cluster] node",
            )
        self.sessions[session.node] = session
        session.received_ns = self._clock_ns()
        self._log.info("daemon", node=session.node, address=session.address, version=session.hello.version)
        self._electorate.outbid(session.hello.authority, session.hello.term)  # greets all when it raises the term
        if session.welcomed_term == 0:
            self._greet(session)

    def _remove(self, session: Session) -> None:
        if self.sessions.get(session.node) is session:
            del self.sessions[session.node]
            self.questions.left(session.node)
            if self.cluster is not None:
                self.cluster.disconnect(session.node, self._clock_ns())
                self._ticks_wanted.set()
            self._log.info("daemon-lost", node=session.node)

    async def _read(self, session: Session) -> None:
        while True:
            session.waits_for_it = True
            message = await session.context.read()
            session.waits_for_it, session.unanswered = False, 0
            if not isinstance(message, pb.FromNode):
                return
            session.received_ns = self._clock_ns()
            if self.cluster is None:
                continue  # sent before the daemon knew that this one does not lead
            kind = message.WhichOneof("kind")
            if kind == "report" and message.report.term == session.welcomed_term:
                await self._turns.take(self._while_followed(session, self.cluster, message.report))
            elif kind == "echo":
                session.lag_ns = max(0, session.received_ns - message.echo.stamp_ns)
                session.epoch_applied = message.echo.epoch
            elif kind == "answer" and self.sessions.get(session.node) is session:
                self.questions.answered(session.node, message.answer)

    def _number_ports(self, session: Session, ports: messages.Ports) -> None:
        assert self.cluster is not None
        for port in ports:
            number = self.cluster.ports.number(port.name)
            if session.hello.outlook:
                session.promises.name(number, len(session.ports))
            session.ports.append(number)

    def _while_followed(self, session: Session, cluster: Cluster, report: pb.Report) -> Iterator[None]:
        """Yields the events of the report for as long as this is the node's current stream and the report is for this
        leader. All events of one pass of the loop are planned together at its end."""
        for _ in self.events(session, cluster, report, session.received_ns):
            yield
            if (
                self.cluster is not cluster
                or session.welcomed_term != report.term
                or self.sessions.get(session.node) is not session
            ):
                return
            if not self._judging:
                self._judging = True
                cluster.hold()
                asyncio.get_running_loop().call_soon(self._judge, cluster)

    def _judge(self, cluster: Cluster) -> None:
        self._judging = False
        cluster.release(self._clock_ns())
        self._wake(cluster)
        self._ticks_wanted.set()
        self._owes_another()

    def _owes_another(self) -> None:
        """What is owed at some port may have changed."""
        self._promises_wanted.set()
        self._notify_watchers()

    def _notify_watchers(self) -> None:
        for changed in self.watchers:
            changed()

    def events(self, session: Session, cluster: Cluster, report: pb.Report, received_ns: int) -> Iterator[None]:
        """Applies one report that arrived at that time, one event in each step."""
        yield
        now_ns = self._clock_ns()
        check_ports(report.ports, len(session.ports))
        try:
            self._number_ports(session, report.ports)
        except PortsExhausted as error:
            raise Refused(pb.Refusal.HELLO, str(error)) from error
        for load in report.loads:
            if load.port < len(session.ports):
                cluster.load(session.ports[load.port], load.rho)
                if load.HasField("used"):
                    cluster.used(session.ports[load.port], messages.used(load))
        for routed in report.routed:
            try:
                cluster.history.observe(routed.unit, session.node, messages.demands(routed, session.ports))
            except ValueError:
                cluster.oddities["routing history that cannot be read: ignored"] += 1
        if report.HasField("tiers"):
            try:
                found = messages.node_tiers(report.tiers)
            except ValueError:
                cluster.oddities["tiers of requests that cannot be read: ignored"] += 1
            else:
                report.tiers.DiscardUnknownFields()  # they would be kept, whatever their size
                cluster.has_tiers(session.node, found, report.tiers.SerializeToString())
        for outcome in report.outcomes:
            cluster.ended(session.node, outcome.request_id, outcome.met, now_ns)
        for batch_id in report.departed:
            cluster.depart(session.node, batch_id, now_ns)
            yield
        yield from self._waiting(session, cluster, report, received_ns)
        for rows, take in ((report.arrived, cluster.arrive), (report.updated, cluster.update)):
            for row in rows:
                try:
                    batch = messages.batch_report(row, session.ports, self._clock_ns() - received_ns)
                except ValueError as error:
                    cluster.odd(session.node, row.batch_id, str(error))
                else:
                    take(session.node, batch, self._clock_ns())
                yield
        if report.snapshot_end:
            cluster.synchronise(session.node, now_ns)

    def _waiting(self, session: Session, cluster: Cluster, report: pb.Report, received_ns: int) -> Iterator[None]:
        """Applies the report's waiting requests, many in each step, because they cause no planning."""
        for at, request_id in enumerate(report.waits_no_more):
            cluster.waits_no_more(session.node, request_id)
            if at % WAITING_PER_STEP == WAITING_PER_STEP - 1:
                yield
        for at, row in enumerate(report.waiting):
            now_ns = self._clock_ns()
            try:
                cluster.waits(session.node, messages.waiting_report(row, session.ports, now_ns - received_ns), now_ns)
            except ValueError:
                cluster.oddities["waiting request that cannot be read: ignored"] += 1
            if at % WAITING_PER_STEP == WAITING_PER_STEP - 1:
                yield

    def _wake(self, cluster: Cluster) -> None:
        for name in cluster.dirty:
            session = self.sessions.get(name)
            if session is not None:
                session.wake.set()

    async def _write(self, session: Session) -> None:
        while True:
            await session.wake.wait()
            session.wake.clear()
            if session.refused is not None:
                raise session.refused
            while session.control:
                await session.context.write(session.control.pop(0).SerializeToString())
            if session.promises.waits:
                self._promises_wanted.set()
            cluster = self.cluster
            if cluster is None or session.welcomed_term == 0:
                continue
            if not self._electorate.valid() or session.welcomed_term != self._electorate.role.term:
                continue  # its decisions are void but kept: a late renewal of the lease makes them valid again
            delta = cluster.take(session.node)
            if delta is None:
                continue
            order = messages.order(delta, session.welcomed_term, cluster.ports)
            session.epoch_sent = delta.epoch
            await session.context.write(order)

    async def tick(self) -> None:
        """Ticks the cluster whenever a tick is due, for as long as the service runs. An idle cluster has no ticks."""
        while True:
            await self._ticks_wanted.wait()
            self._ticks_wanted.clear()
            while (cluster := self.cluster) is not None and (due_ns := cluster.due_ns()) is not None:
                left_ns = due_ns - self._clock_ns()
                if left_ns > 0:
                    await asyncio.sleep(left_ns / 1e9)
                else:
                    cluster.tick(self._clock_ns())
                    self._wake(cluster)
                    if cluster.touched or cluster.waiting.touched:
                        self._owes_another()

    async def promise(self) -> None:
        """Sends daemons what is promised at the ports that they have named, for as long as the service runs. Sends
        nothing when idle, and otherwise so seldom that it takes a small share of the time."""
        while True:
            await self._promises_wanted.wait()
            self._promises_wanted.clear()
            spent_s = 0.0
            cluster = self.cluster
            if cluster is not None and not self._electorate.valid():
                self._promises_wanted.set()  # set until it is valid again or no longer leads
            elif cluster is not None:
                touched = cluster.touched | cluster.waiting.touched
                cluster.touched, cluster.waiting.touched = set(), set()
                for session in list(self.sessions.values()):
                    begun_s = time.monotonic()
                    if session.control:
                        session.promises.later(touched)  # it does not even take what was sent before
                    elif session.welcomed_term and session.hello.outlook and self.cluster is cluster:
                        message = session.promises.take(cluster, touched, session.welcomed_term)
                        if message is not None:
                            session.send(message)
                        if session.promises.waits:
                            self._promises_wanted.set()
                    spent_s += time.monotonic() - begun_s
                    await asyncio.sleep(0)  # one daemon in each pass of the loop
            await asyncio.sleep(max(PROMISES_S, spent_s / PROMISES_SHARE))

    async def remember(self) -> None:
        """Samples the history, for as long as the service runs."""
        while True:
            if self.cluster is not None and self.cluster.nodes:
                self.cluster.remember(self._clock_ns())
            await asyncio.sleep(REMEMBER_S)

    async def beat(self) -> None:
        """Sends heartbeats, for as long as the service runs."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_ns / 1e9)
            self._heartbeat()

    def _heartbeat(self) -> None:
        leads = self.cluster is not None and self._electorate.valid()
        standby = self._standby()
        for session in self.sessions.values():
            if session.welcomed_term and leads:
                self._count_silence(session)
            if session.control:
                continue  # it does not even take what was sent before
            if session.welcomed_term == 0:
                session.send(standby)
            elif leads and self.cluster is not None:
                beat = pb.Heartbeat(term=session.welcomed_term, epoch=self.cluster.epoch, stamp_ns=self._clock_ns())
                session.send(pb.ToNode(heartbeat=beat))

    def _count_silence(self, session: Session) -> None:
        """Counts the heartbeats that the daemon has not answered. Time would not do: while this process was stopped
        there were no heartbeats."""
        if not session.waits_for_it:
            return
        session.unanswered += 1
        most = max(SILENT_HEARTBEATS, -(-SILENT_MIN_NS // self.settings.heartbeat_ns))
        if session.unanswered >= most and session.reader is not None:
            self._log.warning("daemon-silent", node=session.node, for_s=most * self.settings.heartbeat_ns / 1e9)
            session.reader.cancel()

    # ---- operators -------------------------------------------------------------------------------

    async def status(self, request: pb.StatusRequest, _context: object) -> pb.StatusReply:
        return self.seen(request.batches_max, request.history_max, request.batch_id)

    async def ask(
        self, request: pb.AskRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.AskReply]:
        """Passes a question on to the daemons."""
        if self.cluster is None or not self._electorate.valid():
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this coordinator does not lead; ask the leader")
        try:
            async with contextlib.aclosing(self.questions.ask(request)) as replies:
                async for reply in replies:
                    yield reply
        except NotAsked as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    def seen(self, batches_max: int, history_max: int = 0, batch_id: int = 0) -> pb.StatusReply:
        """Returns what operators are shown: at most this many batches (0: all) and intervals, and the requests of one
        batch."""
        role = self._electorate.role
        now_ns = self._clock_ns()
        reply = pb.StatusReply(
            version=self.settings.version,
            address=self.settings.advertise,
            leads=self.cluster is not None and self._electorate.valid(),
            leader=role.leader,
            authority=role.authority,
            term=role.term,
            uptime_ns=now_ns - self._started_ns,
        )
        messages.fill_history(reply, self.past, history_max, now_ns)
        if self.cluster is not None:
            self.cluster.advance(now_ns)
            messages.fill_status(reply, self.cluster, batches_max)
            if batch_id:
                messages.fill_requests(reply, self.cluster, batch_id)
            for row in reply.nodes:
                session = self.sessions.get(row.node)
                if session is not None:
                    row.address = session.address
                    row.version = session.hello.version
                    row.lag_ns = session.lag_ns
                    row.silent_ns = max(0, now_ns - session.received_ns)
                    # Decisions about other nodes' batches are not sent to it, and it has nothing to do about them.
                    waiting = self.cluster.epoch if row.node in self.cluster.dirty else session.epoch_sent
                    row.epochs_behind = max(0, waiting - session.epoch_applied)
        return reply

    def leading(self) -> Cluster | None:
        """Returns the state as of now; None while another coordinator leads."""
        if self.cluster is None or not self._electorate.valid():
            return None
        self.cluster.advance(self._clock_ns())
        return self.cluster

    @property
    def role(self) -> Role:
        return self._electorate.role

    def leader_elsewhere(self) -> str:
        """Returns the address of another coordinator that leads, as far as this one knows."""
        leader = self._electorate.role.leader
        return leader if self.cluster is None and leader != self.settings.advertise else ""

    def take_history(self, reply: pb.StatusReply) -> None:
        """Stores the leader's history, for the time when this coordinator leads."""
        if self.cluster is None and reply.leads:
            messages.follow_history(self.past, reply, self._clock_ns())

    def reconfigure(self, new: Settings) -> None:
        """Applies the settings that can change in a running coordinator."""
        old = self.settings
        self.settings = msgspec.structs.replace(old, policy=new.policy, grace_ns=new.grace_ns)
        if self.cluster is not None:
            self.cluster.grace_ns = new.grace_ns
            if new.policy != old.policy:
                self.cluster.replace_policy(new.policy, self._clock_ns())
                self._wake(self.cluster)
                self._owes_another()

    def stop(self) -> None:
        """Sends the daemons elsewhere."""
        for session in self.sessions.values():
            session.end(pb.Refusal.STOPPING, "this coordinator is shutting down")
