"""Explanations say what the policy decides, with the numbers that went in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mfsd._native import RANK_NONE, NicFacts, Stage, TaskSnapshot, Tier
from mfsd.node.explain import RLI_UNKNOWN, Seen, Surroundings, explain, key_of, status_of, why_before
from mfsd.policy import EarlyOrder, PolicyConfig, Variant

NOW = 10**12
S = 10**9
NIC = NicFacts(rate_bytes_per_s=10**9, rho=0.2, unit_slack_ns=None)
CONFIG = PolicyConfig()


def snapshot(**changed: Any) -> TaskSnapshot:
    fields: dict[str, Any] = {
        **dict.fromkeys(TaskSnapshot._fields, 0),
        "task": 5 << 32 | 17,
        "bytes": 1 << 20,
        "submit_ns": NOW - 12_000_000,
        "stage": Stage.P2D,
        "tier": Tier.LAST,
        "level": 8,
        "wire_class": 6,
        "queued": True,
        "rank": RANK_NONE,
        "in_flight": False,
        "batch_announced": False,
        "batch_pruned": False,
        "critical": False,
        "lost": False,
        "pruned": False,
    }
    return TaskSnapshot(**{**fields, **changed})


def seen(client: int = 3, **changed: Any) -> Seen:
    return Seen(snapshot(**changed), client, "vllm", "mlx5_0")


def around(**changed: Any) -> Surroundings:
    fields: dict[str, Any] = {
        "facts": NIC,
        "window_bytes": 2 << 20,
        "in_flight_bytes": 2 << 20,
        "unscheduled_bytes": 0,
        "order": "this node's own RED order",
    }
    return Surroundings(**{**fields, **changed})


def last(**changed: Any) -> Seen:
    """0.1 GB to ship in 1 s over 0.8 GB/s: MLU 0.125, which is Q_2; level 2 of variant paper."""
    fields: dict[str, Any] = {
        "request_id": 41,
        "batch_id": 7,
        "bytes_left": 10**8,
        "request_deadline_ns": NOW + S,
        "budget_ns": 2 * S,
        "level": 2,
        "wire_class": 1,
        "arrival": 9,
    }
    return seen(**{**fields, **changed})


def text(subject: Seen, *others: Seen, config: PolicyConfig = CONFIG, **changed: Any) -> str:
    return "\n".join(explain(config, subject, others, around(**changed), NOW).reasons)


def test_mlu_with_its_numbers() -> None:
    output = text(last())
    assert "Task 3:17:5 of vllm on mlx5_0: p2d, 1 MiB, request 41, batch 7; waiting for 12 ms." in output
    assert "Tier last, after early stages, by deadline: class 1 of 8 on the wire" in output
    assert "95.37 MiB still to ship, 1 s to the deadline" in output
    assert "MLU" not in output
    paper = text(last(), config=PolicyConfig(variant=Variant.PAPER))
    assert "level 2 of 8, after early stages" in paper
    assert "MLU 0.125 = 95.37 MiB still to ship / (1 s to the deadline x 8 Gbit/s x (1 - rho 0.20))" in paper
    assert "Q_2 = 0.125 <= MLU < Q_1 = 0.5" in paper
    assert "Level 1 comes in 750 ms" in paper  # 1 s - 0.1 GB / (0.5 x 0.8 GB/s)
    assert "Laxity 900 ms: with the port to itself it would be done in 100 ms" in output
    assert "It becomes critical below a laxity of 100 ms (5% of budget)" in output
    assert "The window is full: 2 MiB of 2 MiB are in flight" in output


def test_the_facts_are_numbers() -> None:
    facts = explain(CONFIG, last(), (), around(red_ns=NOW + 5 * S), NOW).facts
    assert facts["laxity_ns"] == 9 * S // 10
    assert facts["deadline_ns"] == S
    assert facts["red_ns"] == 5 * S
    assert not {"mlu", "thresholds"} & facts.keys()
    facts = explain(PolicyConfig(variant=Variant.PAPER), last(), (), around(), NOW).facts
    assert facts["mlu"] == pytest.approx(0.125)
    assert facts["thresholds"] == "0.5 0.125 0.03125 0.007812 0.001953 0.0004883 0.0001221"


def test_compute_and_its_tail() -> None:
    output = text(last(compute_end_ns=NOW + S // 2, bytes_tail=10**8, batch_announced=True))
    assert "computes for another 500 ms: it is promoted at layer boundaries" in output
    assert "Laxity 400 ms: with the port to itself it would be done in 600 ms" in output
    assert "comes in" not in output


def test_a_lost_request() -> None:
    lost = last(lost=True, tier=Tier.LAST, request_deadline_ns=NOW + S // 20)
    output = text(lost)
    assert "Lost: with the port to itself it would be done in 100 ms, 50 ms too late" in output
    assert "as one that is due in 8.05 s" in output  # four budgets of 2 s later
    assert "Tier scavenger" in text(lost, config=PolicyConfig(variant=Variant.PAPER))


def test_a_deadline_that_has_passed() -> None:
    config = PolicyConfig(variant=Variant.PAPER)
    reply = explain(config, last(request_deadline_ns=NOW - S, lost=True), (), around(), NOW)
    assert reply.facts["mlu"] is None
    assert any("deadline passed 1 s ago" in reason for reason in reply.reasons)


def test_class_0_and_the_unit_that_would_wait() -> None:
    close = {"request_deadline_ns": NOW + 15 * S // 100}  # laxity 50 ms, guard 100 ms
    assert "It cannot become critical: the unit that would wait has 60 ms" in text(
        last(**close), facts=NIC._replace(unit_slack_ns=60_000_000)
    )
    assert "nearly run out" in text(last(**close, critical=True, tier=Tier.CRITICAL))
    assert "its whole budget is not known" in text(last(budget_ns=0))
    assert "critical" not in text(last(), config=PolicyConfig(variant=Variant.PAPER))


def test_without_a_deadline() -> None:
    assert "no deadline" in text(last(request_deadline_ns=0))


def test_reuse_by_layers_and_rank() -> None:
    reuse = seen(stage=Stage.REUSE, tier=Tier.EARLY, layer=12, rli=3, rank=2, batch_announced=True, batch_id=7)
    output = text(reuse, red_ns=NOW + S, order="the coordinator (term 3, epoch 77)")
    assert "RLI 3 = layer 12, which needs it, less layer 9, which runs now" in output
    assert "rank 2, from the coordinator (term 3, epoch 77); robust effective deadline in 1 s" in output
    assert "RLI 0: layer 12" in text(seen(stage=Stage.REUSE, tier=Tier.EARLY, layer=12, rli=0, batch_announced=True))
    assert "not known" in text(seen(stage=Stage.REUSE, tier=Tier.EARLY, layer=12, rli=RLI_UNKNOWN + 12))


def test_pruned_and_why() -> None:
    output = text(last(pruned=True, tier=Tier.SCAVENGER), why_pruned="batch 9 did not fit through 10.0.0.1/out")
    assert "pruned: batch 9 did not fit through 10.0.0.1/out: it goes when nothing else waits" in output
    reuse = seen(stage=Stage.REUSE, tier=Tier.EARLY, rli=0, batch_announced=True, pruned=True)
    assert "keeps its place, since its peers would stall" in text(reuse)


def test_what_the_coordinator_finds_infeasible() -> None:
    output = text(last(), why_pruned="it would be late with every port to itself")
    assert "The coordinator has given its request up: it would be late with every port to itself." in output


def test_background() -> None:
    assert "no claim on time" in text(seen(stage=Stage.BACKGROUND, tier=Tier.SCAVENGER))
    assert "no claim on time" in text(seen(stage=77, tier=Tier.SCAVENGER))


def test_who_is_ahead_and_why() -> None:
    subject = last()
    reuse = seen(4, stage=Stage.REUSE, tier=Tier.EARLY, rli=1, layer=4, batch_announced=True, arrival=30)
    urgent = last(task=1, level=1, arrival=31)
    sooner = last(task=2, request_deadline_ns=NOW + S // 2, arrival=32)
    before = last(task=3, arrival=8)
    behind = [last(task=4, arrival=10), last(task=6, level=3), seen(stage=Stage.BACKGROUND, tier=Tier.SCAVENGER)]
    flying = last(task=5, in_flight=True, arrival=1)
    reply = explain(CONFIG, subject, [behind[0], before, sooner, flying, urgent, reuse, *behind[1:]], around(), NOW)
    assert [(a.id.split(":")[0], a.why) for a in reply.ahead] == [
        ("4", "tier early goes before last"),
        ("3", "it is due 500 ms earlier"),
        ("3", "it came first"),
    ]
    assert (reply.ahead_tasks, reply.ahead_bytes) == (3, 3 << 20)
    assert any("3 tasks with 3 MiB go before it: 3.146 ms at the port's rate" in r for r in reply.reasons)
    paper = PolicyConfig(variant=Variant.PAPER)
    reply = explain(paper, subject, [behind[0], before, sooner, flying, urgent, reuse, *behind[1:]], around(), NOW)
    assert [a.why for a in reply.ahead][1] == "level 1 before 2"


def test_early_ones_against_each_other() -> None:
    key, by_rank = (1, 2, 5, 2, 9), PolicyConfig(early_order=EarlyOrder.RANK)
    small, large, idle = 5, (4 << 32) + 3, (63 << 32) + 2**32 - 1
    assert why_before(CONFIG, (1, 1, 9, 2, 10), key) == "RLI 1 before 2"
    assert why_before(by_rank, (1, 2, 4, 2, 10), key) == "rank 4 before 5"
    assert why_before(CONFIG, (1, 2, 4, 2, 10), key) == "rank 4 before 5"
    assert (
        why_before(CONFIG, (1, 2, small, 2, 10), (1, 2, large, 2, 9))
        == "its batch waits for below 1 KiB, the other for 8 KiB to 16 KiB"
    )
    assert why_before(CONFIG, (1, 2, large - 3, 3, 9), (1, 2, large, 2, 1)).startswith("it is critical")
    assert why_before(CONFIG, (1, 2, 5, 1, 10), key) == "its stage goes first"
    assert why_before(CONFIG, (1, 2, 5, 2, 8), key) == "it came first"
    assert why_before(CONFIG, (1, 2, 5, 2, 8), (1, RLI_UNKNOWN + 3, 5, 2, 1)) == "RLI 2 before unknown"
    assert why_before(by_rank, (1, 2, 5, 2, 8), (1, 2, 2**32 - 1, 2, 1)) == "rank 5 before none"
    assert why_before(CONFIG, (1, 2, 5, 2, 8), (1, 2, idle, 2, 1)) == "its batch runs"


def test_a_load_that_is_fetched_has_the_class_of_all_of_it() -> None:
    load = seen(stage=Stage.REUSE, tier=Tier.EARLY, rli=RLI_UNKNOWN, request_id=41, bytes_left=10**6, bytes_whole=10**8)
    reply = explain(CONFIG, load, [], around(), NOW)
    wanted = "its class goes by the whole load: 95.37 MiB, which take 100 ms"
    assert any(wanted in reason for reason in reply.reasons) and reply.facts["whole_bytes"] == 10**8
    sent = seen(stage=Stage.REUSE, tier=Tier.EARLY, rli=RLI_UNKNOWN, request_id=41, bytes_left=10**6)
    one_class = msgspec.structs.replace(CONFIG, short_load_ns=0)
    for other in (explain(CONFIG, sent, [], around(), NOW), explain(one_class, load, [], around(), NOW)):
        assert not any("whole load" in reason for reason in other.reasons)


def test_reuse_of_a_request_that_queues() -> None:
    def reuse(task: int, request: int, mib: int, of_mib: int) -> Seen:
        return seen(
            task=task, stage=Stage.REUSE, tier=Tier.EARLY, rli=RLI_UNKNOWN, request_id=request, bytes=mib << 20,
            arrival=task, bytes_left=of_mib << 20,
        )  # fmt: skip

    subject, small = reuse(1, 41, 3, of_mib=9), reuse(3, 42, 5, of_mib=5)
    reply = explain(CONFIG, subject, [reuse(2, 41, 6, of_mib=9), small], around(), NOW)
    assert any("its request still queues, and waits for 9 MiB here" in reason for reason in reply.reasons)
    assert [a.why for a in reply.ahead] == [
        "its request counts as waiting for 4 MiB to 8 MiB, the other for 8 MiB to 16 MiB"
    ]
    unknown = (1, RLI_UNKNOWN, (63 << 32) + 2**32 - 1, 2, 1)
    why = why_before(CONFIG, (1, RLI_UNKNOWN, 5, 2, 8), unknown)
    assert why == "it has no batch, and that of the other does not run"
    reply = explain(CONFIG, reuse(1, 0, 3, of_mib=3), [reuse(2, 0, 1, of_mib=1)], around(), NOW)
    assert any("waits for 3 MiB here" in reason for reason in reply.reasons), (
        "where nothing is known it stands for itself"
    )
    assert len(reply.ahead) == 1


def test_a_batch_is_measured_by_all_it_waits_for() -> None:
    def reuse(client: int, task: int, mib: int, of_mib: int, rank: int = 0) -> Seen:
        return seen(
            client,
            task=task,
            stage=Stage.REUSE,
            tier=Tier.EARLY,
            rli=1,
            batch_announced=True,
            batch_id=client,
            bytes=mib << 20,
            bytes_left=of_mib << 20,
            rank=rank,
        )

    subject, others = reuse(3, 1, 3, of_mib=3, rank=9), [reuse(4, 2, 2, of_mib=5), reuse(4, 3, 3, of_mib=5)]
    reply = explain(CONFIG, subject, others, around(), NOW)
    assert reply.ahead == [] and reply.facts["stall_bytes"] == 3 << 20
    reply = explain(CONFIG, others[0], [subject, others[1]], around(), NOW)
    assert [a.why for a in reply.ahead] == ["its batch waits for 2 MiB to 4 MiB, the other for 4 MiB to 8 MiB"]
    assert any("waits for 5 MiB here;" in reason for reason in reply.reasons)


def test_of_batches_that_wait_for_about_as_much_the_rank_decides() -> None:
    def reuse(client: int, mib: int, rank: int) -> Seen:
        return seen(
            client,
            stage=Stage.REUSE,
            tier=Tier.EARLY,
            rli=1,
            batch_announced=True,
            batch_id=client,
            bytes=mib << 20,
            rank=rank,
        )

    reply = explain(CONFIG, reuse(3, 2, rank=7), [reuse(4, 3, rank=6)], around(), NOW)
    assert [a.why for a in reply.ahead] == ["rank 6 before 7"]
    assert any("(2 MiB to 4 MiB) the smaller rank" in reason for reason in reply.reasons)


def test_many_ahead_are_counted_and_some_shown() -> None:
    others = [last(task=i, arrival=i) for i in range(9)] + [last(task=20 + i, level=1) for i in range(9)]
    reply = explain(CONFIG, last(arrival=100), others, around(), NOW)
    assert reply.ahead_tasks == 18
    assert len(reply.ahead) == 10


def test_what_it_waits_for() -> None:
    assert "Collectives are under way (1 KiB)" in text(last(), unscheduled_bytes=1024)
    assert "It is the next to go." in text(last())
    assert "The NIC's window has room: it goes as soon as its destination's has." in text(last(), in_flight_bytes=0)


def test_in_flight() -> None:
    output = text(last(in_flight=True))
    assert "in flight." in output and "on its way" in output


def test_a_task_past_a_full_queue() -> None:
    assert "found the daemon's queue full" in text(last(queued=False, in_flight=True))


def test_the_line_of_a_trace() -> None:
    status = status_of(last(), NOW)
    assert (status.id, status.stage, status.tier, status.level, status.rli, status.rank) == (
        "3:17:5",
        "p2d",
        "last",
        2,
        None,
        None,
    )
    assert status.waited_s == pytest.approx(0.012)
    early = status_of(seen(stage=Stage.REUSE, tier=Tier.EARLY, rli=2, rank=1), NOW)
    assert (early.level, early.rli, early.rank, early.request_id) == (None, 2, 1, None)


def test_keys_are_those_of_the_policy() -> None:
    by_rank = PolicyConfig(early_order=EarlyOrder.RANK)
    assert key_of(CONFIG, last(), NIC, NOW) == (2, 0, NOW + S, 0, 9)
    assert key_of(by_rank, seen(stage=Stage.REUSE, tier=Tier.EARLY, layer=9, rli=4, rank=3, arrival=2), NIC, NOW) == (
        1,
        4,
        3,
        2,
        2,
    )


def test_a_load_that_comes_too_late_says_so() -> None:
    def load(task: int, mib: int, needed_ns: int) -> Seen:
        return seen(
            task=task, stage=Stage.REUSE, tier=Tier.EARLY, rli=RLI_UNKNOWN, request_id=task, bytes=mib << 20,
            deadline_ns=needed_ns, arrival=task,
        )  # fmt: skip

    rate = around().facts.rate_bytes_per_s
    takes_ns = -(-(3 << 20) * 10**9 // rate)
    in_time, late = load(1, 3, NOW + takes_ns), load(2, 3, NOW + takes_ns - 1)
    reply = explain(CONFIG, in_time, [late], around(), NOW)
    assert (reply.facts["laxity_ns"], reply.ahead) == (0, [])
    assert any(reason.startswith("It must be there in ") for reason in reply.reasons)
    reply = explain(CONFIG, late, [in_time, load(3, 13, 0)], around(), NOW)
    assert reply.facts["laxity_ns"] == -1
    assert any("too late" in reason and "counts as 4 times as large" in reason for reason in reply.reasons)
    assert [(a.id, a.why) for a in reply.ahead] == [
        (in_time.id, "its request counts as waiting for 2 MiB to 4 MiB, the other for 8 MiB to 16 MiB")
    ]
