"""Explains in sentences and numbers why a task has its place.

Pure: it takes a snapshot, and asks the rules of the native queue, the very functions that decide, what follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from mfsd._native import LATE_SIZES, RANK_NONE, SIZE_NONE, Decision, NicFacts, OrderPlace, OrderReasons, TaskSnapshot
from mfsd.node.control import Ahead, ExplainReply, TaskStatus
from mfsd.policy import NO_DEADLINE, NO_RANK, Flow, Key, PolicyConfig, Stage, Tier, Variant
from mfsd.policy.estimate import bytes_ahead, overlapped_finish_ns, transfer_ns
from mfsd.policy.native import order_rules
from mfsd.policy.types import known_stage
from mfsd.policy.urgency import minimal_link_utilization, thresholds

AHEAD_SHOWN = 10
CRITICAL_STAGE = 3
"""The fourth part of an early task's key if the task is a critical last stage."""
RLI_UNKNOWN = 1 << 16
"""From this value on, the distance of the layer is not known, since the batch is not."""


class Seen(Struct, frozen=True):
    """A task as the arbiter showed it, and its owner."""

    state: TaskSnapshot
    client_id: int
    process: str
    nic: str

    @property
    def id(self) -> str:
        return f"{self.client_id}:{self.state.task & 0xFFFFFFFF}:{self.state.task >> 32}"

    @property
    def direction(self) -> tuple[int, int]:
        """NIC and direction: the queue that it waits in."""
        return self.state.nic, self.state.direction


class Surroundings(Struct, frozen=True):
    """What else decided the order of one direction of a NIC."""

    facts: NicFacts
    window_bytes: int
    in_flight_bytes: int
    unscheduled_bytes: int
    """Bytes in flight of stages that never wait."""
    order: str
    """Where ranks come from, for people."""
    red_ns: int | None = None
    """RED of the task's batch."""
    why_pruned: str | None = None
    """The coordinator's reason."""


def _without_batch(state: TaskSnapshot) -> bool:
    """Whether this is reuse that is fetched while its request still queues."""
    return state.stage == Stage.REUSE and not state.batch_id


def flow_of(config: PolicyConfig, seen: Seen, facts: NicFacts, now_ns: int) -> tuple[Flow, Decision]:
    """The task in the policy's terms."""
    state = seen.state
    last = state.stage == Stage.P2D
    deadline_ns = (state.request_deadline_ns if last else state.deadline_ns) or NO_DEADLINE
    flow = Flow(
        stage=state.stage,
        sequence=state.arrival,
        remaining_bytes=state.bytes_left or state.bytes,  # 0: early and in flight
        rate_bytes_per_s=facts.rate_bytes_per_s,
        layer_target=state.layer,
        rank=NO_RANK if state.rank == RANK_NONE else state.rank,
        deadline_ns=deadline_ns,
        budget_ns=state.budget_ns,
        computing=state.compute_end_ns > now_ns,
        compute_end_ns=state.compute_end_ns,
        tail_bytes=state.bytes_tail,
        without_batch=_without_batch(state),
        whole_bytes=state.bytes_whole or None,
        batch_running=state.batch_announced,
        pruned=state.pruned or state.batch_pruned,
    )
    decision = Decision(state.level, state.critical, state.lost)
    if flow.without_batch:
        return flow, decision._replace(infeasible=order_rules(config).place(flow, decision, now_ns).late)
    return flow, decision


def key_of(config: PolicyConfig, seen: Seen, facts: NicFacts, now_ns: int) -> Key:
    """Its place in the order. The smallest goes first."""
    flow, decision = flow_of(config, seen, facts, now_ns)
    return order_rules(config).place(flow, decision, now_ns, layer_current=seen.state.layer - seen.state.rli).key


def status_of(seen: Seen, now_ns: int) -> TaskStatus:
    """The task's line in a trace."""
    state = seen.state
    tier = Tier(state.tier) if state.queued else Tier.SCAVENGER
    early = tier is Tier.EARLY
    return TaskStatus(
        id=seen.id,
        process=seen.process,
        nic=seen.nic,
        stage=known_stage(state.stage).name.lower(),
        state="in-flight" if state.in_flight else "held",
        size_bytes=state.bytes,
        wire_class=state.wire_class,
        tier=tier.name.lower(),  # type: ignore[arg-type]  # the literal spells the names
        level=state.level or None if state.stage == Stage.P2D and state.queued else None,
        rli=state.rli if early and state.rli < RLI_UNKNOWN else None,
        rank=None if state.rank == RANK_NONE else state.rank,
        request_id=state.request_id or None,
        batch_id=state.batch_id or None,
        layer=state.layer,
        pruned=state.pruned or state.batch_pruned,
        waited_s=max(0, now_ns - state.submit_ns) / 1e9,
    )


def explain(
    config: PolicyConfig, subject: Seen, others: Sequence[Seen], around: Surroundings, now_ns: int
) -> ExplainReply:
    """Explains the place of `subject`. `others`: the other tasks that wait for the same NIC."""
    flow, decision = flow_of(config, subject, around.facts, now_ns)
    reasons = [_what(subject, now_ns)]
    facts: dict[str, int | float | str | bool | None] = {
        "rate_bytes_per_s": around.facts.rate_bytes_per_s,
        "rho": around.facts.rho,
        "unit_slack_ns": around.facts.unit_slack_ns,
        "order": around.order,
        "rank": None if flow.rank == NO_RANK else flow.rank,
        "red_ns": None if around.red_ns is None else around.red_ns - now_ns,
        "pruned": flow.pruned,
    }
    if not subject.state.queued:
        reasons.append("It found the daemon's queue full and was permitted at once, from the scavenger's class.")
        return ExplainReply(status_of(subject, now_ns), facts, reasons, [], 0, 0)
    place = order_rules(config).place(flow, decision, now_ns)
    tier = Tier(subject.state.tier if subject.state.in_flight else place.tier)
    reasons.append(_place(config, subject, tier))
    if known_stage(flow.stage) is Stage.P2D:
        _last_stage(config, flow, decision, around.facts, now_ns, reasons, facts)
    elif tier is Tier.EARLY:
        _early_stage(config, subject, flow, place, now_ns, reasons, facts)
    elif known_stage(flow.stage) is Stage.BACKGROUND:
        reasons.append("Background and unknown stages have no claim on time: they go when nothing else waits.")
    if flow.rank != NO_RANK or around.red_ns is not None:
        reasons.append(_rank(config, flow, around, now_ns))
    if flow.pruned:
        reasons.append(_pruned(config, subject, flow, around))
    elif around.why_pruned and known_stage(flow.stage) is Stage.P2D:
        reasons.append(f"The coordinator has given its request up: {around.why_pruned}.")
    if subject.state.in_flight:
        reasons.append("It has its permit and is on its way: nothing is ahead of it, and its class stays.")
        return ExplainReply(status_of(subject, now_ns), facts, reasons, [], 0, 0)
    return _with_ahead(config, subject, others, around, now_ns, reasons, facts)


# ---- sentences -----------------------------------------------------------------------------------


def _what(subject: Seen, now_ns: int) -> str:
    state = subject.state
    parts = [f"{known_stage(state.stage).name.lower()}, {_size(state.bytes)}"]
    if state.request_id:
        parts.append(f"request {state.request_id}")
    if state.batch_id:
        parts.append(f"batch {state.batch_id}")
    phase = "in flight" if state.in_flight else f"waiting for {_time(max(0, now_ns - state.submit_ns))}"
    return f"Task {subject.id} of {subject.process} on {subject.nic}: {', '.join(parts)}; {phase}."


def _place(config: PolicyConfig, subject: Seen, tier: Tier) -> str:
    where = f"class {subject.state.wire_class} of {config.classes} on the wire"
    return {
        Tier.CRITICAL: f"Tier critical, among the early stages, the first of its size: {where}."
        if order_rules(config).by_size
        else f"Tier critical, which goes before everything: {where}.",
        Tier.EARLY: f"Tier early, before last stages: {where}.",
        Tier.LAST: f"Tier last, level {subject.state.level} of {config.levels}, after early stages: {where}."
        if config.variant is Variant.PAPER
        else f"Tier last, after early stages, by deadline: {where}.",
        Tier.SCAVENGER: f"Tier scavenger, when nothing else waits: {where}.",
    }[tier]


def _last_stage(
    config: PolicyConfig,
    flow: Flow,
    decision: Decision,
    nic: NicFacts,
    now_ns: int,
    reasons: list[str],
    facts: dict[str, int | float | str | bool | None],
) -> None:
    facts |= {"bytes_left": flow.remaining_bytes, "bytes_tail": flow.tail_bytes, "budget_ns": flow.budget_ns}
    if flow.deadline_ns == NO_DEADLINE:
        reasons.append("Its request has no deadline, so it goes after those that have one.")
        return
    rules = order_rules(config)
    why = rules.reasons(flow, decision, now_ns, nic.rho)
    laxity = why.laxity_ns
    facts |= {
        "deadline_ns": flow.deadline_ns - now_ns,
        "laxity_ns": laxity,
        "compute_left_ns": max(0, flow.compute_end_ns - now_ns),
    }
    left = flow.deadline_ns - now_ns
    if left <= 0:
        reasons.append(f"Its deadline passed {_time(-left)} ago with {_size(flow.remaining_bytes)} still to ship.")
    elif config.variant is Variant.MFS:
        reasons.append(f"{_size(flow.remaining_bytes)} still to ship, {_time(left)} to the deadline.")
    if config.variant is Variant.PAPER:
        _level(config, flow, decision, why, nic, now_ns, reasons, facts)
    if flow.computing:
        reasons.append(
            f"Its batch computes for another {_time(flow.compute_end_ns - now_ns)}: it is promoted at layer boundaries."
        )
    finish = overlapped_finish_ns(
        now_ns, flow.compute_end_ns, flow.remaining_bytes, flow.tail_bytes, flow.rate_bytes_per_s
    )
    alone = f"with the port to itself it would be done in {_time(finish - now_ns)}"
    if decision.infeasible:
        late = f"{_time(-laxity)} too late" if laxity < 0 else f"{_time(laxity)} in time"
        reasons.append(
            f"Lost: {alone}, {late}; it comes back with {config.readmission_margin:.0%} of its budget to spare."
        )
        if config.variant is Variant.MFS:
            when = (
                "after all that have a deadline"
                if why.due_ns == NO_DEADLINE
                else f"as one that is due in {_time(why.due_ns - now_ns)}"
            )
            reasons.append(f"Until then it is served {when}, so that it delays no request that can still be in time.")
        return
    reasons.append(f"Laxity {_time(laxity)}: {alone}.")
    if decision.critical:
        reasons.append("It is critical, and goes with the shortest loads, because its laxity had nearly run out.")
    elif config.variant is Variant.MFS:
        guard = why.guard_ns
        facts["critical_below_laxity_ns"] = guard
        if guard <= 0:
            reasons.append("It cannot become critical: its whole budget is not known.")
        elif laxity >= guard:
            reasons.append(
                f"It becomes critical below a laxity of {_time(guard)} ({config.critical_laxity_share:.0%} of budget)."
            )
        elif not rules.evaluate(flow, decision, now_ns, nic.rho, nic.unit_slack_ns)[0].critical:
            reasons.append(
                f"It cannot become critical: the unit that would wait has {_time(nic.unit_slack_ns or 0)} to spare, "
                "less than it needs to let all of this request go first."
            )


def _level(
    config: PolicyConfig,
    flow: Flow,
    decision: Decision,
    why: OrderReasons,
    nic: NicFacts,
    now_ns: int,
    reasons: list[str],
    facts: dict[str, int | float | str | bool | None],
) -> None:
    """Says why a last stage of variant paper has its level."""
    rate = why.effective_rate_bytes_per_s
    mlu = minimal_link_utilization(flow.remaining_bytes, flow.deadline_ns, now_ns, rate)
    falling = thresholds(config)
    facts |= {
        "mlu": mlu if math.isfinite(mlu) else None,
        "effective_rate_bytes_per_s": rate,
        "thresholds": " ".join(f"{q:.4g}" for q in falling),
    }
    if flow.deadline_ns > now_ns:
        reasons.append(
            f"MLU {mlu:.4g} = {_size(flow.remaining_bytes)} still to ship / ({_time(flow.deadline_ns - now_ns)} to the "
            f"deadline x {_rate(nic.rate_bytes_per_s)} x (1 - rho {nic.rho:.2f}))."
        )
    level = decision.level
    above = f" < Q_{level - 1} = {falling[level - 2]:.4g}" if level > 1 else ""
    below = f"Q_{level} = {falling[level - 1]:.4g} <= " if level <= len(falling) else ""
    if below or above:
        reasons.append(f"Level {level} of {config.levels}: reached when {below}MLU{above}; a level is never lost.")
    waits = not flow.computing and not decision.infeasible and not flow.pruned
    if waits and why.level_ns is not None and why.level_ns > now_ns:
        next_in = _time(why.level_ns - now_ns)
        reasons.append(f"Level {level - 1} comes in {next_in} if nothing of it is served until then.")


def _early_stage(
    config: PolicyConfig,
    subject: Seen,
    flow: Flow,
    place: OrderPlace,
    now_ns: int,
    reasons: list[str],
    facts: dict[str, int | float | str | bool | None],
) -> None:
    rli = subject.state.rli
    by_size = order_rules(config).by_size
    if known_stage(flow.stage) is not Stage.REUSE:
        reasons.append("Collectives and control block the layer that runs now: RLI 0.")
        facts["rli"] = 0
    elif rli < RLI_UNKNOWN:
        current = flow.layer_target - rli
        facts |= {"rli": rli, "layer": flow.layer_target}
        reasons.append(
            f"RLI {rli} = layer {flow.layer_target}, which needs it, less layer {current}, which runs now."
            if rli
            else f"RLI 0: layer {flow.layer_target}, which needs it, runs now or is over."
        )
    else:
        facts["rli"] = None
        reasons.append("Its batch is not known, so the distance of its layer is not: it goes behind those that are.")
    if by_size and flow.without_batch:
        facts["request_bytes"] = flow.remaining_bytes
        reasons.append(
            f"It has no batch: its request still queues, and waits for {_size(flow.remaining_bytes)} here; of such "
            "requests the one that waits for less goes first."
        )
        if flow.whole_bytes is not None and config.short_load_ns:
            facts["whole_bytes"] = flow.whole_bytes
            whole, alone_ns = _size(flow.whole_bytes), transfer_ns(flow.whole_bytes, flow.rate_bytes_per_s)
            reasons.append(
                f"It is fetched, so its class goes by the whole load: {whole}, which take {_time(alone_ns)}."
            )
        if flow.deadline_ns != NO_DEADLINE:
            reasons.append(_needed(flow, place.late, now_ns, facts))
    if by_size and flow.batch_running:
        facts["stall_bytes"] = flow.remaining_bytes
        alike = _sizes(place.key[2] >> 32)
        reasons.append(
            f"Its batch waits for {_size(flow.remaining_bytes)} here; of equal RLI the one that waits for less "
            f"goes first, and of those that wait for about as much ({alike}) the smaller rank."
        )


def _needed(flow: Flow, late: bool, now_ns: int, facts: dict[str, int | float | str | bool | None]) -> str:
    """Says how late or early a load without a batch is, if it has a deadline."""
    alone_ns = transfer_ns(flow.remaining_bytes, flow.rate_bytes_per_s)
    laxity = flow.deadline_ns - now_ns - alone_ns
    facts |= {"needed_ns": flow.deadline_ns - now_ns, "laxity_ns": laxity}
    alone = f"with the port to itself that takes {_time(alone_ns)}"
    if late:
        return f"It comes {_time(-laxity)} too late: {alone}; so it counts as {1 << LATE_SIZES} times as large."
    return f"It must be there in {_time(flow.deadline_ns - now_ns)}: {alone}."


def _rank(config: PolicyConfig, flow: Flow, around: Surroundings, now_ns: int) -> str:
    rank = "no rank" if flow.rank == NO_RANK else f"rank {flow.rank}"
    due = "" if around.red_ns is None else f"; robust effective deadline in {_time(around.red_ns - now_ns)}"
    return f"Its batch has {rank}, from {around.order}{due}."


def _pruned(config: PolicyConfig, subject: Seen, flow: Flow, around: Surroundings) -> str:
    why = f": {around.why_pruned}" if around.why_pruned else ""
    if known_stage(flow.stage) is Stage.REUSE and config.variant is Variant.MFS and flow.batch_running:
        return f"Its request is pruned{why}; reuse of a running batch keeps its place, since its peers would stall."
    return f"Its request is pruned{why}: it goes when nothing else waits, until it is feasible again."


def _with_ahead(
    config: PolicyConfig,
    subject: Seen,
    others: Sequence[Seen],
    around: Surroundings,
    now_ns: int,
    reasons: list[str],
    facts: dict[str, int | float | str | bool | None],
) -> ExplainReply:
    key = key_of(config, subject, around.facts, now_ns)
    keyed = sorted(
        ((key_of(config, o, around.facts, now_ns), o) for o in others if o.state.queued and not o.state.in_flight),
        key=lambda pair: pair[0],
    )
    ahead = [(k, o) for k, o in keyed if k < key]
    size = bytes_ahead(key, ((k, o.state.bytes) for k, o in keyed))
    if ahead:
        takes = _time(transfer_ns(size, around.facts.rate_bytes_per_s))
        reasons.append(f"{len(ahead)} tasks with {_size(size)} go before it: {takes} at the port's rate.")
    else:
        reasons.append("It is the next to go.")
    reasons.append(_waits_for(subject, around, first=not ahead))
    shown = [
        Ahead(o.id, known_stage(o.state.stage).name.lower(), o.state.bytes, why_before(config, k, key))
        for k, o in ahead[:AHEAD_SHOWN]
    ]
    return ExplainReply(status_of(subject, now_ns), facts, reasons, shown, len(ahead), size)


def why_before(config: PolicyConfig, first: Key, second: Key) -> str:
    """Why the smaller of two keys is smaller."""
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b), len(first) - 1)
    tier = Tier(first[0])
    if at == 0:
        return f"tier {tier.name.lower()} goes before {Tier(second[0]).name.lower()}"
    if at == 1:
        return f"{'level' if tier is Tier.LAST else 'RLI'} {_rli(first[1])} before {_rli(second[1])}"
    if at == 2:
        if tier is Tier.EARLY:
            return _early_before(config, first, second)
        if second[2] == NO_DEADLINE:
            return "it has a deadline"
        return f"it is due {_time(second[2] - first[2])} earlier"
    return "its stage goes first" if at == 3 else "it came first"


def _early_before(config: PolicyConfig, first: Key, second: Key) -> str:
    size, rank = divmod(first[2], 1 << 32)
    other_size, other_rank = divmod(second[2], 1 << 32)
    by_size = order_rules(config).by_size
    if by_size and size != other_size:
        runs = first[1] < RLI_UNKNOWN
        if other_size == SIZE_NONE:
            return "its batch runs" if runs else "it has no batch, and that of the other does not run"
        if not runs:
            return f"its request counts as waiting for {_sizes(size)}, the other for {_sizes(other_size)}"
        return f"its batch waits for {_sizes(size)}, the other for {_sizes(other_size)}"
    if by_size and first[3] == CRITICAL_STAGE:
        return "it is critical, and the other waits for about as much"
    return f"rank {_or_none(rank, NO_RANK)} before {_or_none(other_rank, NO_RANK)}"


def _sizes(size: int) -> str:
    """The sizes of a size class."""
    return f"{_size(1 << (size + 9))} to {_size(1 << (size + 10))}" if size else "below 1 KiB"


def _rli(value: int) -> str:
    return "unknown" if value >= RLI_UNKNOWN else str(value)


def _or_none(value: int, none: int) -> str:
    return "none" if value == none else str(value)


def _waits_for(subject: Seen, around: Surroundings, first: bool) -> str:
    if around.unscheduled_bytes and subject.state.tier != Tier.CRITICAL:
        return f"Collectives are under way ({_size(around.unscheduled_bytes)}): only critical tasks go now."
    if not first:
        return "It waits for those before it."
    if around.in_flight_bytes and around.in_flight_bytes + subject.state.bytes > around.window_bytes:
        return f"The window is full: {_size(around.in_flight_bytes)} of {_size(around.window_bytes)} are in flight."
    return "The NIC's window has room: it goes as soon as its destination's has."


def _size(value: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value} B"


def _rate(bytes_per_s: int) -> str:
    for unit, size in (("Gbit/s", 10**9), ("Mbit/s", 10**6)):
        if bytes_per_s * 8 >= size:
            return f"{bytes_per_s * 8 / size:.4g} {unit}"
    return f"{bytes_per_s * 8} bit/s"


def _time(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{sign}{ns / size:.4g} {unit}"
    return f"{sign}{ns} ns"


shown_size, shown_rate, shown_time = _size, _rate, _time
"""For explanations of more than one task."""
