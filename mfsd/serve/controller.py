"""The meta controller in an engine's process: reads the engine's requests, decides about once a second, changes the
policy between two steps. Off unless the settings enable it.

The strategy `llm` asks a model behind an endpoint. That takes seconds, so a thread does it while the engine serves; an
answer that is late, absent or of another form counts as none, and the rules decide.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mfsd.policy.serve import Policy
from mfsd.policy.serve.meta import Decision, MetaState, Qos, Strategy, Views, configured, decide, llm
from mfsd.policy.serve.meta.guard import Bypass
from mfsd.policy.serve.pace import prefill_s_per_token
from mfsd.policy.serve.perceive import Outputs, cost_of
from mfsd.serve.endpoint import ask_endpoint
from mfsd.serve.engine import Engine
from mfsd.serve.history import PRIOR_TOKENS
from mfsd.serve.requests import Entry
from mfsd.serve.settings import Meta

Ask = Callable[[Meta, str], bytes]
"""Asks the model; its text, or an exception."""


class _Answer(NamedTuple):
    asked_s: float
    policy: Policy


class _Followed:
    """A request while it is here."""

    __slots__ = ("entry", "evaluated", "service_s", "timed")

    def __init__(self, entry: Entry, service_s: float) -> None:
        self.entry, self.service_s = entry, service_s
        self.evaluated = self.timed = False


class Controller:
    """`tick` after steps, not more often than about once a second."""

    def __init__(
        self, engine: Engine, config: Meta, warn: Callable[[str, str], object], ask: Ask | None = None
    ) -> None:
        self._engine, self._config, self._warn = engine, config, warn
        self._ask = ask or ask_endpoint
        self._qos, self._outputs = Qos(config), Outputs()
        self._state = MetaState()
        self._followed: dict[int, _Followed] = {}
        self._newest = 0
        self._resting = False
        self._answer: _Answer | None = None
        self._asking: threading.Thread | None = None
        self._asked_s: float | None = None
        """For the next decision."""
        self.latest: Decision | None = None

    def rest(self, resting: bool) -> None:
        """An operator has chosen the policy, or gives the choice back. What comes meanwhile is not the doing of the
        controller's own choice, so that is neither taken back nor learned from, and says nothing of a bypass."""
        self._resting = resting
        self._state = msgspec.structs.replace(self._state, watch=None, pulled=None, bypass=Bypass())
        self.latest = None

    def tick(self) -> None:
        now_s = self._engine.clock()
        self._read_requests(now_s)
        views = self._views(now_s)
        if self._resting:
            return
        if self._config.strategy is Strategy.LLM:
            self._ask_in_time(views, now_s)
        decision, self._state = decide(self._config, self._state, views, now_s, self._answer_at(now_s))
        if decision.decided:
            self._qos.decided()
            self._answer = self._asked_s = None
        if self.latest is None or decision.policy is not self.latest.policy or decision.bypass != self.latest.bypass:
            self._engine.use(configured(self._engine.base, decision))
        self.latest = decision

    # ---- what requests experienced -----------------------------------------------------------------------------------

    def _read_requests(self, now_s: float) -> None:
        engine = self._engine
        each = prefill_s_per_token(engine.state.pace, engine.config.step_tokens, engine.config.ranks)
        for entry in engine.entries.values():
            if entry.number > self._newest:
                self._arrived(entry, now_s, each)
        self._newest = max(self._followed, default=self._newest)
        for number, followed in list(self._followed.items()):
            entry = followed.entry
            self._experienced(followed, now_s)
            if engine.entries.get(entry.name) is not entry:
                self._ended(followed, now_s)
                del self._followed[number]

    def _arrived(self, entry: Entry, now_s: float, each: float) -> None:
        wanted = entry.wanted
        perceived = self._outputs.perceive(
            wanted.tenant, wanted.application, wanted.expected_output_tokens, PRIOR_TOKENS
        )
        cost = cost_of(
            entry.arrival_s,
            entry.prompt_tokens,
            perceived.output_tokens,
            wanted.ttft_s or 0.0,
            wanted.tbt_s or 0.0,
            each,
            self._engine.base.decode_step_s,
        )
        self._qos.arrived(now_s, cost.total_s, perceived.known)
        self._followed[entry.number] = _Followed(entry, cost.total_s)

    def _experienced(self, followed: _Followed, now_s: float) -> None:
        """Its first token, and whether that was in time, once each."""
        entry = followed.entry
        at_s, limit_s = entry.first_token_s, entry.wanted.ttft_s
        if at_s is not None and not followed.timed:
            followed.timed = True
            self._qos.first_token(now_s, at_s - entry.arrival_s)
        if limit_s is None or followed.evaluated:
            return
        late = (now_s if at_s is None else at_s) > entry.arrival_s + limit_s
        if late or at_s is not None:
            followed.evaluated = True
            self._qos.evaluated(now_s, entry.wanted.tenant, followed.service_s, late)

    def _ended(self, followed: _Followed, now_s: float) -> None:
        entry = followed.entry
        if entry.first_token_s is None:  # it was withdrawn
            return
        self._outputs.ended(entry.wanted.tenant, entry.wanted.application, entry.outputs)
        first_late = entry.wanted.ttft_s is not None and entry.first_token_s > entry.arrival_s + entry.wanted.ttft_s
        self._qos.ended(now_s, entry.late_tokens == 0, entry.late_tokens > int(first_late))

    def _views(self, now_s: float) -> Views:
        engine = self._engine
        each = prefill_s_per_token(engine.state.pace, engine.config.step_tokens, engine.config.ranks)
        waiting = [f.entry for f in self._followed.values() if f.entry.first_token_s is None and f.entry.due_s >= now_s]
        limits = [e.wanted.ttft_s for e in waiting if e.wanted.ttft_s is not None]
        return self._qos.views(now_s, each * sum(e.to_compute for e in waiting), min(limits, default=0.0))

    # ---- the model ---------------------------------------------------------------------------------------------------

    def _ask_in_time(self, views: Views, now_s: float) -> None:
        """So that the answer is there when the strategy has its turn; again where that is put off for long. The first
        decision is made at once, without one."""
        decided_s, asked_s, every_s = self._state.decided_s, self._asked_s, self._config.every_s
        if decided_s is None or now_s - decided_s < every_s - self._config.timeout_s:
            return
        if asked_s is not None and now_s - asked_s < self._holds_s:
            return
        if self._asking is not None and self._asking.is_alive():
            return
        self._asked_s = now_s
        text = llm.question(self._config, views, self._engine.config.policy)
        self._asking = threading.Thread(target=self._answered, args=(text, now_s), name="mfs-meta", daemon=True)
        self._asking.start()

    @property
    def _holds_s(self) -> float:
        """An answer to what was asked longer ago is about another load."""
        return max(self._config.every_s, self._config.timeout_s)

    def _answer_at(self, now_s: float) -> Policy | None:
        answer = self._answer
        if answer is None or answer.asked_s != self._asked_s or now_s - answer.asked_s > self._holds_s:
            return None
        return answer.policy

    def _answered(self, text: str, asked_s: float) -> None:
        endpoint = self._config.endpoint
        try:
            policy = llm.read_answer(self._config, self._ask(self._config, text))
        except Exception as error:  # whatever a foreign server does
            self._warn("serve-meta", f"{endpoint}: {error!s:.200}; rules choose the policy instead")
            return
        if self._engine.clock() - asked_s > self._config.timeout_s:
            self._warn("serve-meta-late", f"{endpoint}: its answer is late; rules choose the policy instead")
        elif policy is None:
            self._warn("serve-meta-answer", f"{endpoint}: its answer names no policy of the pool as JSON")
        else:
            self._answer = _Answer(asked_s, policy)
