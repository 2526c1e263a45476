"""Decisions of the request tier by what the network still owes: fetch reuse or compute it again, and which worker
decodes. Which unit computes is decided in online.py.

Both are made when a request arrives, by what is then known of backlogs. The outlook says how that is known: exactly;
from a coordinator, whose view of other nodes' ports is old; from the request's own node; or not at all. Without it a
fetch is expected to take its own bytes over the rate of the port.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from bench.sim.cluster import Cluster, ConfigError, Request
from mfsd.policy.serve.fetch import EXTRA_SHARE, Choice, ReuseRule, ReuseView, decide

if TYPE_CHECKING:
    from bench.sim.states import Batch, State
    from bench.sim.topology import Path

REUSE = {
    "always": "fetch it (default)",
    "slo": "compute it again if the request would be late with it and in time without, and if that is short",
    "cost": "compute it again if that gains more time than it takes of the requests that queue",
    "timeout:S": "fetch it, and compute it again if it is not there after S seconds",
    "timeout:S+T": "the same after S seconds and T more for each 1,024 tokens that are fetched",
}
PLACEMENTS = {
    "random": "as --decode-choice says (default)",
    "backlog": "the one to which least KV is still on its way",
}
ROUTERS = {
    "locality": "before the run, by an estimate of its wait and what it holds (default)",
    "locality:P": "the same, where a cached token that is fetched costs P computed ones and not 0.1",
    "transfer": "as the request arrives, by wait, expected fetch and what ports owe",
}
OUTLOOKS = {
    "exact": "of all ports, now (default)",
    "coordinator": "of all ports, --outlook-age-ms old, of the own node's now",
    "local": "of the own node's ports",
    "none": "of none",
}
TIMEOUT = "timeout:"
LOCALITY = "locality:"
MAX_SPREAD = 10.0
TIMEOUT_TOKENS = 1024  # tokens that a timeout's second number refers to
PART_TOKENS = 16  # a part to fetch is rounded down to whole blocks, as engines have them
SPREAD = 7919  # a prime: among workers that owe the same, each request starts at another one


class Timeout(NamedTuple):
    """Time after which a load is given up."""

    base_s: float
    tokens_s: float  # added for each TIMEOUT_TOKENS to fetch

    def of(self, tokens: int) -> float:
        return self.base_s + self.tokens_s * tokens / TIMEOUT_TOKENS


class ReuseConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are decided; the same for all of a run."""

    rule: str = "always"  # see REUSE
    placement: str = "random"  # see PLACEMENTS
    router: str = "locality"  # which unit computes, see ROUTERS
    outlook: str = "exact"  # see OUTLOOKS
    error: float = 1.0  # factor on expected fetch times
    error_spread: float = 0.0  # standard deviation of the logarithm of a further factor, drawn for each
    age_s: float = 0.0  # age of a coordinator's view
    extra_share: float = EXTRA_SHARE  # share of a request's time limit that computing again may take, for rule slo
    recheck_s: float = 0.0  # how long a request waits for a later answer while its unit is busy
    parts: bool = False  # whether the first part of what is computed again may be fetched

    def __post_init__(self) -> None:
        timeout = self.timeout
        if self.rule not in REUSE and timeout is None:
            raise ConfigError(f"--reuse {self.rule}: use always, slo, cost or timeout:SECONDS")
        if timeout is not None and not (0 < timeout.base_s < math.inf and 0 <= timeout.tokens_s < math.inf):
            raise ConfigError(
                f"--reuse {self.rule}: use a number of seconds above 0, such as timeout:0.5, or two, such as "
                "timeout:1+0.25"
            )
        for option, value, known in (
            ("--placement", self.placement, PLACEMENTS),
            ("--outlook", self.outlook, OUTLOOKS),
        ):
            if value not in known:
                raise ConfigError(f"{option} {value}: use one of {', '.join(known)}")
        price = self.locality_price
        if self.router not in ("locality", "transfer") and price is None:
            raise ConfigError(f"--router {self.router}: use locality, locality:PRICE or transfer")
        if price is not None and not 0 <= price < math.inf:
            raise ConfigError(f"--router {self.router}: use a price of at least 0, such as locality:1")
        if not 0 < self.error < math.inf:
            raise ConfigError(f"--outlook-error {self.error}: use a number above 0; 1 is no error")
        if not 0 <= self.error_spread <= MAX_SPREAD:
            raise ConfigError(f"--outlook-error-spread {self.error_spread}: use 0 to {MAX_SPREAD:g}; 0 is no error")
        if not 0 <= self.age_s < math.inf:
            raise ConfigError(f"--outlook-age-ms {1e3 * self.age_s:g}: use at least 0")

    @property
    def timeout(self) -> Timeout | None:
        """The timeout; None with another rule."""
        if not self.rule.startswith(TIMEOUT):
            return None
        base, plus, tokens = self.rule.removeprefix(TIMEOUT).partition("+")
        return Timeout(_number(base), _number(tokens) if plus else 0.0)

    @property
    def locality_price(self) -> float | None:
        return _number_after(LOCALITY, self.router)

    @property
    def as_routed(self) -> bool:
        """Whether reuse and decode workers stay as they were routed."""
        return self.rule == "always" and self.placement == "random"


def _number_after(prefix: str, text: str) -> float | None:
    """Returns the number after the prefix; None without the prefix, NaN if no number follows."""
    return _number(text.removeprefix(prefix)) if text.startswith(prefix) else None


def _number(text: str) -> float:
    """Returns NaN if the text is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


class Backlog(NamedTuple):
    """What was owed at one moment."""

    at_s: float
    loads: Mapping[int, float]  # bytes of loads under way, by link
    workers: Mapping[int, float]  # bytes of KV that each decode worker is still to get


NOTHING_KNOWN = Backlog(-math.inf, {}, {})


class Engine(Protocol):
    """The part of the simulation that decisions read and act on."""

    cluster: Cluster
    now: float
    loads_first: bool
    queues: list[deque[State]]
    running: list[Batch | None]

    def at(self, time: float, act: Callable[[Any], None], what: Any) -> None: ...
    def recompute(self, state: State, fetched_tokens: int = 0) -> None: ...
    def decided(self, state: State) -> None: ...
    def until_layer_s(self, batch: Batch, layer: int) -> float: ...
    def reuse_left(self, state: State) -> float: ...
    def p2d_left(self, state: State) -> float: ...


class ReuseDecisions:
    """Decides for each request as it arrives. A simulation without this object fetches all reuse."""

    def __init__(self, simulation: Engine, config: ReuseConfig) -> None:
        cluster = simulation.cluster
        if config.rule != "always" and not simulation.loads_first:
            raise ConfigError(
                f"--reuse {config.rule} --fetch {cluster.config.fetch}: what is fetched layer by layer is computed "
                "with; use --fetch loaded"
            )
        self.timeout = config.timeout
        if self.timeout is not None and cluster.config.fabric_classes:
            raise ConfigError(
                f"--reuse {config.rule} --fabric-classes {cluster.config.fabric_classes}: fetches that end early are "
                "modelled in exact order alone; use --fabric-classes 0"
            )
        self.simulation = simulation
        self.config = config
        self.current = config.outlook != "coordinator" or config.age_s == 0
        self.rule = ReuseRule(config.rule) if self.timeout is None else ReuseRule.ALWAYS
        self.recomputed = self.parts = self.expired = self.waited = 0
        self.loads: list[tuple[float, float]] = []  # how long a fetch was expected to take, and took
        self.asked: list[tuple[float, float]] = []  # the same by the coordinator's view alone, as for a router
        self._expected: dict[State, tuple[float, float, float]] = {}  # start, and the expected time as in both lists
        self._loading: dict[State, None] = {}
        self._unshipped: dict[State, None] = {}
        self._placed: deque[tuple[float, int, float]] = deque()  # time, worker, bytes: since the known view
        self._known: deque[Backlog] = deque()  # a coordinator's views, oldest first
        self._token_s = {part.number: part.batch_s([(1024, 1024)] * 4) / 4096 for part in cluster.parts}

    def counts(self) -> dict[str, int]:
        """Returns the numbers of requests whose reuse was computed again at once, of those with a part of it fetched,
        of those whose fetch took too long, and of postponed decisions."""
        return {
            "recomputed": self.recomputed, "parts": self.parts, "expired": self.expired, "waited": self.waited,
        }  # fmt: skip

    # -- which worker decodes

    def place(self, state: State) -> None:
        """Chooses the decode worker. The router knows at once to which worker it has sent requests; how much of that
        has arrived it knows from the outlook alone."""
        if self.config.placement != "backlog" or self.config.outlook not in ("exact", "coordinator"):
            return
        width = state.cluster.decode_width
        workers = state.cluster.decode_workers
        known = self._far()
        owed = [known.workers.get(worker, 0.0) for worker in range(workers)]
        for at_s, worker, size in self._placed:
            if not self.current and at_s >= known.at_s:
                owed[worker] += size
        turn = state.request.number
        worker = min(range(workers), key=lambda w: (owed[w], (w * SPREAD + turn) % workers))
        state.request = msgspec.structs.replace(state.request, decode=worker * width)
        self._placed.append((self.simulation.now, worker, self.simulation.p2d_left(state)))
        self._unshipped[state] = None

    # -- fetch or compute again

    def decide(self, state: State) -> None:
        """Decides about a request before it queues; its group is already chosen."""
        if self.timeout is not None:
            after_s = self.timeout.of(state.request.remote_tokens)
            self.simulation.at(self.simulation.now + after_s, self._expire, state)
            return
        if self.rule is ReuseRule.ALWAYS:
            return
        view = self._view_of(state)
        decision = decide(self.rule, view, self.config.recheck_s, self.config.extra_share)
        state.undecided = decision.choice is Choice.WAIT
        part = _whole_blocks(decision.share * state.request.remote_tokens) if decision.choice is Choice.PART else 0
        if decision.choice is Choice.RECOMPUTE or (decision.choice is Choice.PART and not part):
            self.recomputed += 1
            self.simulation.recompute(state)
        elif part:
            self.parts += 1
            self.simulation.recompute(state, part)
            self._loads(state)
        elif decision.choice is Choice.WAIT:
            self.waited += 1
            self.simulation.at(self.simulation.now + self.config.recheck_s, self._decide_again, state)
        else:
            self._loads(state)

    def _loads(self, state: State) -> None:
        """Records that the request's fetch starts now, with its expected time."""
        expected_s = error_of(self.config, state.request) * self._fetch_s(state)
        asked_s = self._fetch_s(state, self._far() if self.config.outlook == "coordinator" else None)
        self._loading[state] = None
        self._expected[state] = (self.simulation.now, expected_s, asked_s)

    def fetched(self, state: State) -> None:
        """All reuse of the request has arrived."""
        if state in self._expected:
            since_s, expected_s, asked_s = self._expected.pop(state)
            self.loads.append((expected_s, self.simulation.now - since_s))
            self.asked.append((asked_s, self.simulation.now - since_s))

    def _decide_again(self, state: State) -> None:
        self.decide(state)
        if not state.undecided:
            self.simulation.decided(state)

    def _expire(self, state: State) -> None:
        if state.reuse is None:
            return
        self.expired += 1
        come = 1 - self.simulation.reuse_left(state) / state.reuse.message_bytes if self.config.parts else 0.0
        self.simulation.recompute(state, _whole_blocks(come * state.request.remote_tokens))
        self.simulation.decided(state)

    def _view_of(self, state: State) -> ReuseView:
        simulation, cluster, request = self.simulation, state.cluster, state.request
        running, queue = simulation.running[request.unit], simulation.queues[request.unit]
        queue_s = simulation.until_layer_s(running, running.layers) if running is not None else 0.0
        waiting = [other for other in queue if other is not state]
        queue_s += sum(s.request.new_tokens - s.done_tokens for s in waiting) * self._token_s[cluster.number]
        whole = request.new_tokens + request.remote_tokens
        error = error_of(self.config, request)
        return ReuseView(
            fetch_s=error * self._fetch_s(state),
            queue_s=queue_s,
            rest_s=prefill_s(cluster, request.new_tokens, request.context_tokens),
            whole_s=prefill_s(cluster, whole, request.context_tokens - request.remote_tokens),
            left_s=request.deadline_s - simulation.now,
            limit_s=request.budget_s,
            waiting=len(waiting),
            before_s=error * self._ahead_s(cluster.reuse_path(request), state, None) if self.config.parts else None,
        )

    def _fetch_s(self, state: State, near: Backlog | None = None) -> float:
        """Returns the expected time of the fetch by the outlook: what the busiest port on the way owes to loads, plus
        the request's own bytes. `near`: what is known of the own node's ports, if not what they owe now."""
        cluster, request = state.cluster, state.request
        path = cluster.reuse_path(request)
        own_s = request.remote_tokens * cluster.kv_bytes * cluster.model.layers / path.isolated_rate
        return own_s + self._ahead_s(path, state, near)

    def _ahead_s(self, path: Path, state: State, near: Backlog | None) -> float:
        kind, cluster, request = self.config.outlook, state.cluster, state.request
        topology = cluster.topology
        if kind == "none":
            return 0.0
        near = self._owed() if near is None else near
        far = near if self.current else self._far()
        owed_s = 0.0
        own = {topology.nics + topology.port(n) for n in cluster.group_nics(request.unit, request.group)}
        for link in path.shares:
            known = near if link in own else far
            if link in own or kind != "local":
                owed_s = max(owed_s, known.loads.get(link, 0.0) / topology.capacities[link])
        return owed_s

    # -- backlogs

    def _owed(self) -> Backlog:
        """Returns what all ports owe now."""
        simulation = self.simulation
        loads: dict[int, float] = {}
        for state in list(self._loading):
            flow = state.reuse
            if flow is None:
                del self._loading[state]
                continue
            left = simulation.reuse_left(state)
            for link, share in flow.path.shares.items():
                loads[link] = loads.get(link, 0.0) + left * share
        workers: dict[int, float] = {}
        for state in list(self._unshipped):
            if state.finish_s >= 0:
                del self._unshipped[state]
                continue
            worker = state.request.decode // state.cluster.decode_width
            workers[worker] = workers.get(worker, 0.0) + simulation.p2d_left(state)
        return Backlog(simulation.now, loads, workers)

    def _far(self) -> Backlog:
        """Returns what the ports of other nodes owe, by the latest snapshot that is at least as old as a coordinator's.
        A snapshot is taken whenever a request arrives."""
        if self.current:
            return self._owed()
        now = self.simulation.now
        if not self._known or self._known[-1].at_s < now:
            self._known.append(self._owed())
        while len(self._known) > 1 and self._known[1].at_s <= now - self.config.age_s:
            self._known.popleft()
        known = self._known[0]
        if known.at_s > now - self.config.age_s:
            return NOTHING_KNOWN
        while self._placed and self._placed[0][0] < known.at_s:
            self._placed.popleft()
        return known


def _whole_blocks(tokens: float) -> int:
    return int(tokens) // PART_TOKENS * PART_TOKENS


def error_of(config: ReuseConfig, request: Request) -> float:
    """Returns the factor on the expected time of this request's fetch: the same for every rule, and each time it is
    asked."""
    if not config.error_spread:
        return config.error
    seed = f"{request.number} {request.arrival_s}"  # another run has other arrivals
    return config.error * math.exp(random.Random(seed).gauss(0.0, config.error_spread))


def prefill_s(cluster: Cluster, new: int, context: int) -> float:
    """Returns the time of the prompt alone, in as many batches as it needs."""
    budget = cluster.config.batch_tokens
    return cluster.batch_s([(min(budget, new), context)]) * max(1.0, new / budget)
