"""Reads the state of engines and ports: each engine's `/metrics` (vLLM's names) and `/v1/models`, and what the
coordinator that leads says of ports."""

from __future__ import annotations

import asyncio
import contextlib
import math
import urllib.parse
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from mfsd.proto.resolve import resolve
from mfsd.serve.gateway.ports import LINES, SILENT_S, WATCH, PortRows, incoming
from mfsd.serve.gateway.replicas import Card, LiveReplica, ReplicaSet, Stage
from mfsd.serve.gateway.settings import State, key_in
from mfsd.serve.gateway.upstream import in_a_line, own_problem, refused

TIMEOUT_S: Final = 2.0
PORTS: Final = "/v1/ports"
WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
KV_USED, CACHE = "vllm:kv_cache_usage_perc", "vllm:cache_config_info"
READ: Final = (WAITING, RUNNING, KV_USED, CACHE)
RETRY_S: Final = 1.0
"""Until it is tried again."""
LINE_BYTES_MAX: Final = 64 << 20
WITHOUT: Final = (404, 501)
"""Of an engine without metrics; llama.cpp's server says the latter, unless it is told to have some."""
FAILURES_MAX: Final = 2
"""Polls in a row without an answer, until a replica counts as down. A refused connection counts at once."""
MODELS_EVERY: Final = 10
"""Polls, of which one reads the models again: engines load adapters while they serve."""
UNUSABLE: Final = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, RecursionError)
"""What a poll without a usable answer ends with; the last one for JSON with more brackets than calls may be deep."""
NO_SOCKET_S: Final = 60.0
"""Without one, until the next is news."""
NO_SOCKET_REMEDY: Final = (
    "raise the limit of open files (LimitNOFILE of the service, ulimit -n) or of ports (net.ipv4.ip_local_port_range)"
)


class Log(Protocol):
    def info(self, event: str, **values: object) -> None: ...

    def warning(self, event: str, **values: object) -> None: ...


class Metrics(msgspec.Struct):
    """The sums over an engine's parts (data parallel ranks)."""

    waiting: int = 0
    running: int = 0
    kv_used_share: float = 0.0
    """Of the part that has most in use."""
    kv_tokens: int = 0
    """Of one part; 0: unknown."""


def metrics_of(text: str) -> Metrics:
    """Only the lines that count are parsed: engines export thousands. ValueError."""
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
    """Each model, with the longest context that the engine takes."""
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
        return "name a file with its key in api_key_file, or its models in models"
    return "name its models in models"


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
        """forget: is told the names of replicas that are there no more."""
        self._forget, self._resolve, self._unresolved = forget, resolve, set[str]()
        self._replicas, self._state, self._session, self._log = replicas, state, session, log
        self._failures: dict[str, int] = {}
        self._asked: dict[Hashable, asyncio.Task[None]] = {}
        """What has not answered yet: replicas, numbers of names that are looked up, the coordinators' path."""
        self._timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._ports_s = -math.inf
        """Until when what ports owe may be believed."""
        self.coordinator = ""
        """That answered last; empty: none does."""
        self._models_read: dict[str, int] = {}
        """Polls since then, of each replica."""
        self._doubted: dict[str, set[str]] = {}
        """What is wrong with a replica's key or models, as it was logged."""
        self._no_socket_s = -math.inf
        """When that was logged last."""
        self.watched = ""
        """That tells of each change; empty: none does, so that it is asked."""

    async def once(self, most_s: float | None = None) -> None:
        """most_s: the longest wait. What is late (a replica, the coordinators, the addresses of a name) does not hold
        up the next poll of the others: what it was asked goes on, and it is asked nothing else meanwhile."""
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
        """A host that is off, or a process that has stopped, ends no connection by itself. An engine that has answered
        anything since this poll began is only slow."""
        now_s, most_s = asyncio.get_running_loop().time(), self._state.lost_after_s
        for replica in self._replicas.all:
            silent = replica.seen_s < began_s and now_s - replica.seen_s >= most_s
            if silent and replica.turns and not replica.healthy:
                problem = f"nothing has come from it for {most_s:g} s"
                self._log.warning("replica-lost", replica=replica.name, url=replica.url, requests=len(replica.turns))
                for turn in list(replica.turns):
                    turn.lose(problem)

    async def _addresses(self, number: int) -> None:
        """Where its name cannot be looked up, those that are known stay: whether they answer is seen anyhow."""
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

    async def replica(self, replica: LiveReplica) -> None:
        await self._one_at_a_time(replica, partial(self._ask, replica))

    async def _one_at_a_time(self, whom: Hashable, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A caller that comes while it is being asked waits for the same answer."""
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
            if replica.stage is not Stage.RUNS:  # an engine that starts does not answer yet
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
        """The gateway itself can make no connection. Replicas stay as they are: nothing is known of them."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._no_socket_s > NO_SOCKET_S:
            self._log.warning("no-socket", problem=problem, remedy=NO_SOCKET_REMEDY)
        self._no_socket_s = now_s

    def _get(self, replica: LiveReplica, path: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers, file = {}, replica.settings.api_key_file
        if file:
            try:
                headers = {"authorization": f"Bearer {key_in(Path(file))}"}
            except ValueError as error:
                self._doubt(replica, f"api_key_file is {error}")
        return self._session.get(replica.url + path, timeout=self._timeout, headers=headers)

    def _doubt(self, replica: LiveReplica, problem: str) -> None:
        logged = self._doubted.setdefault(replica.name, set())
        if problem not in logged:
            logged.add(problem)
            self._log.warning("replica-doubtful", replica=replica.name, url=replica.url, problem=problem)

    async def _models(self, replica: LiveReplica) -> None:
        """An engine without the page serves what is configured; one that has not loaded its model yet, nothing."""
        async with self._get(replica, "/v1/models") as answer:
            replica.seen()
            status, content = answer.status, await answer.read()
        self._models_read[replica.name] = 0
        if status >= 500 and not replica.healthy:
            raise ValueError(f"/v1/models answers {status}")
        if status != 200:
            if not replica.settings.models:
                problem = f"/v1/models answers {status}, so it is taken to serve any model; {_remedy(status)}"
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
            if answer.status in WITHOUT:  # an engine of another kind: what the gateway has sent is all that is known
                return
            if answer.status >= 400:
                raise ValueError(f"/metrics answers {answer.status}")
            found = metrics_of((await answer.read()).decode(errors="replace"))
        replica.polled(found.waiting, found.running, found.kv_used_share)
        replica.memory_max = found.kv_tokens or None
        replica.bound_prompts()

    async def _health(self, replica: LiveReplica) -> None:
        """Of its model, not of its web server alone. A page that it has not, or does not show, says nothing."""
        async with self._get(replica, "/health") as answer:
            replica.seen()
            if answer.status >= 500:
                raise ValueError(f"/health answers {answer.status}")

    async def watch(self) -> None:
        """Reads each change of the ports from the coordinator that leads, for as long as there is a gateway. Older ones
        answer once; they are asked."""
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
        """Returns where it does not lead, or no more."""
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
                    raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes came")

    async def _ports(self) -> None:
        if self.watched:
            self._expire()  # it may say nothing for now
            return
        for url in self._state.coordinators:
            try:
                async with self._session.get(url.rstrip("/") + PORTS, timeout=self._timeout) as answer:
                    if answer.status != 200:  # it does not lead
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
