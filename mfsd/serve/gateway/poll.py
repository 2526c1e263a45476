"""Reads the state of engines and ports: each engine's `/metrics` (vLLM's names) and `/v1/models`, and the ports from
the leading coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import math
import urllib.parse
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, Protocol

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from mfsd.proto.resolve import resolve
from mfsd.serve.gateway.ports import LINES, SILENT_S, WATCH, PortRows, incoming
from mfsd.serve.gateway.replicas import Card, LiveReplica, ReplicaSet, Stage
from mfsd.serve.gateway.settings import State, key_headers
from mfsd.serve.gateway.upstream import in_a_line, own_problem, refused

TIMEOUT_S: Final = 2.0
PORTS: Final = "/v1/ports"
WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
KV_USED, CACHE = "vllm:kv_cache_usage_perc", "vllm:cache_config_info"
READ: Final = (WAITING, RUNNING, KV_USED, CACHE)
RETRY_S: Final = 1.0
"""Time until the watch is tried again."""
LINE_BYTES_MAX: Final = 64 << 20
WITHOUT: Final = (404, 501)
"""Statuses of an engine without metrics. llama.cpp's server answers 501 unless metrics are enabled."""
FAILURES_MAX: Final = 2
"""Polls in a row without an answer after which a replica is down. After a refused connection it is down at once."""
MODELS_EVERY: Final = 10
"""One of this many polls reads the models again, because engines load adapters while they serve."""
UNUSABLE: Final = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, RecursionError)
"""Errors of a poll without a usable answer. RecursionError is for JSON with too deeply nested brackets."""
NO_SOCKET_S: Final = 60.0
"""A missing socket is logged again after this time without one."""
NO_SOCKET_REMEDY: Final = (
    "raise the limit of open files (LimitNOFILE of the service, ulimit -n) or of ports (net.ipv4.ip_local_port_range)"
)


class Log(Protocol):
    def info(self, event: str, **values: object) -> None: ...

    def warning(self, event: str, **values: object) -> None: ...


class Metrics(msgspec.Struct):
    """Metrics of an engine, summed over its parts (data parallel ranks)."""

    waiting: int = 0
    running: int = 0
    kv_used_share: float = 0.0
    """Share of the part with the highest use."""
    kv_tokens: int = 0
    """KV memory of one part; 0: unknown."""


def metrics_of(text: str) -> Metrics:
    """Parses metrics. Only the needed lines are parsed, because engines export thousands. ValueError."""
    lines = [line for line in text.splitlines() if line.startswith(READ)]
    found = Metrics()
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            value = sample.value if math.isfinite(sample.value) else 0.0
            if sample.name == WAITING:
                found.waiting += int(value)
            elif sample.name == RUNNING:
                found.running += int(value)
            elif sample.name == KV_USED:
                found.kv_used_share = max(found.kv_used_share, min(1.0, value))
            elif sample.name == CACHE:
                with contextlib.suppress(KeyError, ValueError):
                    found.kv_tokens = int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
    return found


def models_of(answer: Any) -> Iterator[tuple[str, Card]]:
    """Yields each model, with the longest context that the engine accepts."""
    entries = answer.get("data") if isinstance(answer, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            limit, created = entry.get("max_model_len"), entry.get("created")
            yield (
                entry["id"],
                Card(
                    prompt_max=limit if isinstance(limit, int) and limit > 0 else None,
                    created=created if isinstance(created, int) and created >= 0 else None,
                ),
            )


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "set api_key_file to a file with its key, or list its models in models"
    return "list its models in models"


class Poller:
    def __init__(
        self,
        replicas: ReplicaSet,
        state: State,
        session: aiohttp.ClientSession,
        log: Log,
        forget: Callable[[str], None] = lambda _: None,
        resolve: Callable[[str], Awaitable[list[str]]] = resolve,
    ) -> None:
        """forget: called with the names of replicas that have disappeared."""
        self._forget, self._resolve, self._unresolved = forget, resolve, set[str]()
        self._replicas, self._state, self._session, self._log = replicas, state, session, log
        self._failures: dict[str, int] = {}
        self._asked: dict[Hashable, asyncio.Task[None]] = {}
        """Queries without an answer: of replicas, numbers of names that are looked up, and the coordinators' path."""
        self._timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._ports_s = -math.inf
        """Time until which the bytes that ports owe are valid."""
        self.coordinator = ""
        """The coordinator that answered last; empty: none answers."""
        self._models_read: dict[str, int] = {}
        """Polls since the models were read, by replica."""
        self._doubted: dict[str, set[str]] = {}
        """Logged problems with the key or models of each replica."""
        self._no_socket_s = -math.inf
        """When a missing socket was last logged."""
        self.watched = ""
        """The coordinator that sends each change; empty: none does, so they are polled."""

    async def once(self, most_s: float | None = None) -> None:
        """Polls everything once. most_s: the longest wait.

        Whatever is late (a replica, the coordinators, the addresses of a name) does not delay the next poll of the
        others. Its query goes on, and there is no other query to it in the meantime."""
        began_s = asyncio.get_running_loop().time()
        several = range(len(self._replicas.several))
        asked = [
            *(asyncio.create_task(self.replica(replica)) for replica in self._replicas.all),
            *(asyncio.create_task(self._one_at_a_time(n, partial(self._addresses, n))) for n in several),
            asyncio.create_task(self._one_at_a_time(PORTS, self._ports)),
        ]
        try:
            done, _ = await asyncio.wait(asked, timeout=most_s)
            await asyncio.gather(*done)
        finally:
            for task in asked:
                task.cancel()
        self._lose(began_s)

    def _lose(self, began_s: float) -> None:
        """Ends the calls at replicas that have been silent for too long, because a host that is off or a stopped
        process ends no connection by itself. An engine that has answered anything since this poll began is only slow.
        """
        now_s, most_s = asyncio.get_running_loop().time(), self._state.lost_after_s
        for replica in self._replicas.all:
            silent = replica.seen_s < began_s and now_s - replica.seen_s >= most_s
            if silent and replica.turns and not replica.healthy:
                problem = f"nothing was received from it for {most_s:g} s"
                self._log.warning("replica-lost", replica=replica.name, url=replica.url, requests=len(replica.turns))
                for turn in list(replica.turns):
                    turn.lose(problem)

    async def _addresses(self, number: int) -> None:
        """Looks up the addresses of a name. If that fails, the known ones stay; polls find out whether they answer."""
        url = self._replicas.several[number].url
        host = urllib.parse.urlsplit(url).hostname or ""
        try:
            addresses = set(await asyncio.wait_for(self._resolve(host), TIMEOUT_S))
        except (asyncio.TimeoutError, OSError) as error:
            if host not in self._unresolved:
                self._unresolved.add(host)
                problem = in_a_line(error)
                self._log.warning("replicas-not-looked-up", url=url, problem=problem)
            return
        self._unresolved.discard(host)
        new, gone = self._replicas.found(number, addresses)
        for replica in gone:
            self._log.info("replica-gone", replica=replica.name, url=replica.url)
            for of in (self._failures, self._models_read, self._doubted):
                of.pop(replica.name, None)
            self._forget(replica.name)
        await asyncio.gather(*(self.replica(replica) for replica in new))

    async def quiet(self, replica: LiveReplica) -> None:
        """Waits until no query of the replica is under way. Later ones ask nothing of a replica that is away."""
        if (task := self._asked.get(replica)) is not None:
            await asyncio.wait({task})

    async def replica(self, replica: LiveReplica) -> None:
        await self._one_at_a_time(replica, partial(self._ask, replica))

    async def _one_at_a_time(self, whom: Hashable, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a query. If the same query is already running, waits for its answer."""
        task = self._asked.get(whom)
        if task is None:
            task = self._asked[whom] = asyncio.create_task(ask())
            task.add_done_callback(lambda _: self._asked.pop(whom, None))
        await asyncio.shield(task)

    async def _ask(self, replica: LiveReplica) -> None:
        if replica.away:
            return
        try:
            polls = self._models_read[replica.name] = self._models_read.get(replica.name, 0) + 1
            if not replica.healthy or not replica.models or polls >= MODELS_EVERY:
                await self._models(replica)
            found = await asyncio.gather(self._metrics(replica), self._health(replica), return_exceptions=True)
            for one in found:
                if isinstance(one, BaseException):
                    raise one
        except UNUSABLE as error:
            if replica.stage is not Stage.RUNS:  # a starting engine does not answer yet
                return
            if own := own_problem(error):
                self.no_socket(own)
                return
            failures = self._failures[replica.name] = self._failures.get(replica.name, 0) + 1
            if failures < FAILURES_MAX and not refused(error) and replica.healthy:
                return
            problem = in_a_line(error)
            if replica.down(problem) or failures == 1:
                self._log.warning("replica-down", replica=replica.name, url=replica.url, problem=problem)
        else:
            self._failures.pop(replica.name, None)
            if replica.up():
                self._log.info("replica-up", replica=replica.name, url=replica.url, models=",".join(replica.models))

    def no_socket(self, problem: str) -> None:
        """Logs that the gateway itself can make no connection. Replicas stay as they are: nothing is known of them."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._no_socket_s > NO_SOCKET_S:
            self._log.warning("no-socket", problem=problem, remedy=NO_SOCKET_REMEDY)
        self._no_socket_s = now_s

    def _get(self, replica: LiveReplica, path: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {}
        try:
            headers = key_headers(replica.settings)
        except ValueError as error:
            self._doubt(replica, str(error))
        return self._session.get(replica.url + path, timeout=self._timeout, headers=headers)

    def _doubt(self, replica: LiveReplica, problem: str) -> None:
        logged = self._doubted.setdefault(replica.name, set())
        if problem not in logged:
            logged.add(problem)
            self._log.warning("replica-doubtful", replica=replica.name, url=replica.url, problem=problem)

    async def _models(self, replica: LiveReplica) -> None:
        """Reads the models. An engine without this page serves the configured ones; an engine that has not loaded its
        model yet serves none."""
        async with self._get(replica, "/v1/models") as answer:
            replica.seen()
            status, content = answer.status, await answer.read()
        self._models_read[replica.name] = 0
        if status >= 500 and not replica.healthy:
            raise ValueError(f"/v1/models answers {status}")
        if status != 200:
            if not replica.settings.models:
                problem = f"/v1/models answers {status}, so the replica is taken to serve any model; {_remedy(status)}"
                self._doubt(replica, problem)
            return
        found = dict(models_of(msgspec.json.decode(content)))
        self._doubted.pop(replica.name, None)
        replica.cards = found
        replica.bound_prompts()
        if not replica.settings.models:
            if replica.healthy and replica.models != tuple(found):
                self._log.info("replica-models", replica=replica.name, models=",".join(found))
            replica.models = tuple(found)

    async def _metrics(self, replica: LiveReplica) -> None:
        async with self._get(replica, "/metrics") as answer:
            replica.seen()
            if answer.status in WITHOUT:  # another kind of engine: only the gateway's own calls are known
                return
            if answer.status >= 400:
                raise ValueError(f"/metrics answers {answer.status}")
            found = metrics_of((await answer.read()).decode(errors="replace"))
        replica.polled(found.waiting, found.running, found.kv_used_share)
        replica.memory_max = found.kv_tokens or None
        replica.bound_prompts()

    async def _health(self, replica: LiveReplica) -> None:
        """Checks the health of the engine's model, not only of its web server. Ignores a missing or forbidden page."""
        async with self._get(replica, "/health") as answer:
            replica.seen()
            if answer.status >= 500:
                raise ValueError(f"/health answers {answer.status}")

    async def watch(self) -> None:
        """Reads each change of the ports from the leading coordinator, as long as there is a gateway. Older
        coordinators answer only once; these are polled."""
        while self._state.coordinators:
            for url in self._state.coordinators:
                try:
                    await self._watch(url)
                except (aiohttp.ClientError, asyncio.TimeoutError, OSError, msgspec.MsgspecError, ValueError) as error:
                    self._log_coordinator(url, error)
                    self.coordinator = "" if self.coordinator == url else self.coordinator
                finally:
                    self.watched = ""
            await asyncio.sleep(min(RETRY_S, self._state.poll_ms / 1e3))
            self._expire()

    async def _watch(self, url: str) -> None:
        """Watches one coordinator; returns if it does not lead (any more)."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=SILENT_S)
        async with self._session.get(url.rstrip("/") + WATCH, timeout=timeout) as answer:
            if answer.status != 200 or answer.content_type != LINES:
                return
            line = bytearray()
            async for part in answer.content.iter_any():
                *whole, rest = part.split(b"\n")
                for end in whole:
                    rows = msgspec.json.decode(bytes(line + end), type=PortRows)
                    line.clear()
                    self.coordinator = self.watched = url
                    self._take(rows)
                line += rest
                if len(line) > LINE_BYTES_MAX:
                    raise ValueError(f"received a line of more than {LINE_BYTES_MAX} bytes")

    async def _ports(self) -> None:
        if self.watched:
            self._expire()  # the watched coordinator may be silent for now
            return
        for url in self._state.coordinators:
            try:
                async with self._session.get(url.rstrip("/") + PORTS, timeout=self._timeout) as answer:
                    if answer.status != 200:  # this coordinator does not lead
                        continue
                    rows = msgspec.json.decode(await answer.read(), type=PortRows)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, msgspec.MsgspecError) as error:
                self._log_coordinator(url, error)
                continue
            self.coordinator = url
            self._take(rows)
            return
        self.coordinator = ""
        self._expire()

    def _expire(self) -> None:
        if asyncio.get_running_loop().time() > self._ports_s:
            for replica in self._replicas.all:
                replica.owed.forget()

    def _log_coordinator(self, url: str, error: Exception) -> None:
        if self.coordinator == url:
            self._log.warning("coordinator-silent", url=url, problem=in_a_line(error))

    def _take(self, rows: PortRows) -> None:
        by_name = {row.name: row for row in rows.ports}
        now_s = asyncio.get_running_loop().time()
        self._ports_s = now_s + rows.ttl_ms / 1e3
        for replica in self._replicas.all:
            port = replica.settings.port
            if not port:
                continue
            row = by_name.get(incoming(port))
            if row is None:
                replica.owed.forget()
            else:
                replica.owed.read(row.owed_bytes, row.rate_bytes_per_s, now_s)
