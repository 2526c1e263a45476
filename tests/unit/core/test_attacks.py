"""What other programs may take from one that does nothing wrong, by a virtual clock, whatever this host is doing.

The scenarios are in tests/native/arbiter_virtual.c, floods in arbiter_floods.c, queue pairs in arbiter_fifo.c, the
ledger in ledger_chains.c, directions in arbiter_directions.c, NICs in arbiter_nics.c.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.native import CorePrograms, core

INCLUDED = ("arbiter/arbiter.c", "arbiter/command.c")
RATE = 1e9
SECONDS = 1.5
KEPT = 0.9
"""Of what the victim moves alone, while others attack it or have bad luck."""
GATE_MAX_US = 2000
MESSAGE = 262144
MESSAGE_US = 263
WINDOW = 200_000
COLLECTIVE = 250_000
"""Bytes of each of those that come beside much else."""
MESSAGES_PER_TURN = 64
FLOOD_READ = (0.3 / 4 + 0.001) * 1e9 / 100
"""Messages of 100 ns in a quarter of 0.3 s, and in the millisecond that one may owe."""
Figures = dict[str, int]
Run = Callable[[str], Figures]


@pytest.fixture(scope="module", params=["plain", "address"])
def build(request: pytest.FixtureRequest, core_programs: CorePrograms) -> Callable[..., Path]:
    """Compiles a program of tests/native with the native core, less the files that it includes."""

    def compile_program(name: str, included: tuple[str, ...] = INCLUDED) -> Path:
        return core_programs.build(name, request.param, core(*included))

    return compile_program


def output(program: Path, *arguments: str) -> str:
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, f"{program.name} {arguments}: exit {done.returncode}\n{done.stderr[-4000:]}"
    return done.stdout


def scenarios(program: Path) -> Run:
    known: dict[str, Figures] = {}

    def one(scenario: str) -> Figures:
        if scenario not in known:
            lines = output(program, *scenario.split()).splitlines()
            known[scenario] = {name: int(value) for name, value in map(str.split, lines)}
        return known[scenario]

    return one


@pytest.fixture(scope="module")
def run(build: Callable[..., Path]) -> Run:
    return scenarios(build("arbiter_virtual"))


@pytest.fixture(scope="module")
def flood(build: Callable[..., Path]) -> Run:
    return scenarios(build("arbiter_floods"))


@pytest.mark.parametrize(
    "scenario",
    [
        *("dead-peer", "dead-peer-shared", "dead-peer-large", "cycle-60ms", "cycle-40ms", "cycle-small"),
        *("byte-now-and-then", "byte-always", "gigabyte-on-credit", "clear-to-send", "comes-and-goes"),
        "credit-stream",
        *("batches", "batches-change", "demands-change", "queues", "queue-backwards"),
        *("queue-pair-split", "queue-pair-both-ways", "several", "own-peer-stopped"),
    ],
)
def test_a_victim_keeps_what_it_has_alone(run: Run, scenario: str) -> None:
    attacked, alone = run(scenario), run("alone")
    assert attacked["victim"] >= KEPT * alone["victim"]
    assert attacked["given_up"] == 0  # a program in trouble looks like this, too


@pytest.mark.parametrize("scenario", ["claims-small", "claims-2mb", "claims-4mib", "claims-1gib"])
def test_who_claims_what_it_does_not_move_has_a_fair_share_of_the_link(run: Run, scenario: str) -> None:
    """64 tasks to as many peers, complete 40 ms after their permits, look like those of an honest program, which would
    have half of the link, however many its tasks are."""
    assert run(scenario)["victim"] >= KEPT * run("alone")["victim"] / 2


@pytest.mark.parametrize("size", ["message", "two-windows", "2mb"])
def test_large_tasks_that_come_after_all_else_take_nothing(run: Run, size: str) -> None:
    """They may go while the victim's one destination is full, but not before the NIC has sent what is in flight there:
    each would have the link for up to 2 ms."""
    figures, alone = run(f"claims-background-{size}"), run("alone")
    assert figures["victim"] >= KEPT * alone["victim"]
    assert figures["longest_us"] <= 2 * alone["longest_us"]


def test_credit_used_again_and_again_fills_no_window(run: Run) -> None:
    """Of a victim with bytes in flight to a slow destination, too: what is claimed to have gone in no time is not
    taken for theirs."""
    attacked, alone = run("credit-churn"), run("alone-slowly")
    assert attacked["victim"] >= KEPT * alone["victim"]
    assert attacked["slow"] >= KEPT * alone["slow"]


@pytest.mark.parametrize("scenario", ["cycle-40ms", "cycle-60ms", "dead-peer-shared", "gigabyte-on-credit"])
def test_a_destination_that_stands_still_is_of_no_program(run: Run, scenario: str) -> None:
    """Not for the 50 ms after which a task is written off: for several times what its bytes take."""
    assert run(scenario)["longest_us"] < 5000


def test_a_slow_destination_keeps_its_pace_and_holds_up_no_other(run: Run) -> None:
    together, alone = run("slow"), run("alone")
    path = RATE / 20 * SECONDS
    assert together["victim"] >= KEPT * (alone["victim"] - path)
    assert together["slow"] >= KEPT * path


def test_collectives_are_hardly_longer_and_leave_the_rest(run: Run) -> None:
    figures = run("collectives")
    assert figures["collectives"] == 300
    assert figures["victim"] >= KEPT * (run("alone")["victim"] - 300 * 1_000_000)
    assert figures["collective_us"] <= 1.15 * 1000


def test_pauses_in_which_no_message_comes_are_skipped(run: Run) -> None:
    figures = run("collectives-apart")
    assert figures["collectives"] == 300
    assert figures["victim"] >= 0.98 * (run("alone")["victim"] - 300 * COLLECTIVE)


def test_pauses_between_the_messages_of_a_collective_are_kept(run: Run) -> None:
    """Without them a message finds what was permitted after the one before, and takes 0.41 ms."""
    figures = run("collectives-in-rings")
    assert figures["collectives"] > 1000
    assert figures["collective_us"] <= 1.25 * COLLECTIVE / RATE * 1e6


@pytest.mark.parametrize(("size", "message"), [("small", MESSAGE), ("messages", MESSAGE), ("large", 1_500_000)])
def test_collectives_find_no_more_ahead_than_the_window_and_a_message(run: Run, size: str, message: int) -> None:
    """Whenever they come, of three programs with 64 messages each, to a slow destination, too. The window empties by
    the rate that collectives leave on average, so what one of them took may be ahead of the next."""
    figures = run(f"collectives-beside-{size}")
    assert figures["collectives"] > 290
    assert 0 < figures["ahead"] <= WINDOW + message + COLLECTIVE


def test_collectives_without_a_pause_take_nearly_all(run: Run) -> None:
    figures = run("collectives-back-to-back")
    assert figures["collective_us"] <= 1.15 * 1000
    assert figures["longest_us"] < GATE_MAX_US + 3 * MESSAGE_US


@pytest.mark.parametrize("scenario", ["link-claimed", "counters-jump"])
def test_who_claims_the_link_leaves_what_age_gives(run: Run, scenario: str) -> None:
    """Counters that say that collectives need all of it look like such collectives: of 2 ms in which held
    flows wait, one message of 256 KiB goes, which is an eighth of the link here."""
    figures = run(scenario)
    assert figures["victim"] >= 0.1 * run("alone")["victim"]
    assert figures["longest_us"] < GATE_MAX_US + 3 * MESSAGE_US


def test_more_peers_than_the_table_holds(run: Run) -> None:
    """The victim names new peers all the while, and each has a place."""
    figures = run("peers")
    assert figures["victim"] >= KEPT * run("alone-wandering")["victim"]
    assert figures["shared"] == 0


def test_what_costs_the_arbiter_is_heard_less(run: Run) -> None:
    """Each message that claims to be the earliest of thousands walks past all of them: about 2,000 steps of 5 ns, in a
    quarter of the time. All 32 a step would be 9.6 million."""
    assert run("queue-backwards")["read"] < 250_000


@pytest.mark.parametrize("scenario", ["tasks", "ends", "requests", "batches", "rereads"])
def test_a_flood_takes_its_share_of_the_arbiter_and_no_permits_of_others(flood: Run, scenario: str) -> None:
    """Messages of a turn, which others wait for; messages and requests in all; and so the victim keeps its permits,
    though a turn takes as long as what it reads."""
    figures = flood(scenario)
    assert 0.9 * MESSAGES_PER_TURN <= figures["most"] <= MESSAGES_PER_TURN
    assert figures["received"] + figures["reread"] <= FLOOD_READ + MESSAGES_PER_TURN
    assert figures["permits"] >= KEPT * flood("alone")["permits"]
    assert figures["given_up"] == 0
    assert (figures["reread"] > 0) == (scenario == "rereads")


@pytest.mark.parametrize("scenario", ["tasks", "ends", "requests", "batches"])
def test_a_flood_is_received_as_far_as_its_share_goes(flood: Run, scenario: str) -> None:
    """Else the counts above would hold of one that is never read."""
    assert flood(scenario)["received"] >= 0.9 * FLOOD_READ


@pytest.mark.parametrize("attackers", [8, 64])
@pytest.mark.parametrize("scenario", ["tasks", "steady", "ends", "requests", "batches", "rereads"])
def test_many_that_flood_share_a_turn(flood: Run, scenario: str, attackers: int) -> None:
    """None of them costs a quarter of the thread's time, which is what each may cost; all are heard alike, and what
    the victim waits for is short."""
    figures = flood(f"{scenario} {attackers}")
    assert figures["permits"] >= KEPT * flood("alone")["permits"]
    assert figures["given_up"] == 0
    assert figures["least"] >= 0.5 * figures["received"] / attackers


@pytest.mark.parametrize("attackers", [8, 64])
def test_many_that_flood_may_have_all_of_the_thread(flood: Run, attackers: int) -> None:
    """What no other program wants: a bound on all of them together would be one on honest programs, too."""
    assert flood(f"tasks {attackers}")["received"] >= 0.9 * 0.3 * 1e9 / 100


def test_a_program_by_itself_is_received_as_fast_as_it_sends(flood: Run) -> None:
    assert flood("by-itself")["received"] > 3 * FLOOD_READ


def test_a_flood_of_what_is_no_message_is_received_in_one_turn(flood: Run) -> None:
    figures = flood("unknown")
    assert (figures["given_up"], figures["permits"]) == (1, flood("alone")["permits"])
    assert figures["received"] <= MESSAGES_PER_TURN


def test_a_permit_goes_to_the_first_of_a_queue_pair(build: Callable[..., Path]) -> None:
    output(build("arbiter_fifo"))


def test_a_batch_that_has_ended_keeps_what_was_submitted_before(build: Callable[..., Path]) -> None:
    output(build("arbiter_ends"))


def test_a_request_in_two_batches_is_known_until_it_has_ended_in_both(build: Callable[..., Path]) -> None:
    output(build("arbiter_lives"))


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_turn_leaves_out_only_directions_where_nothing_is_left_to_do(build: Callable[..., Path], seed: int) -> None:
    output(build("arbiter_directions"), str(seed))


def test_a_heartbeat_measures_the_nics_in_use_and_some_others_in_turn(build: Callable[..., Path]) -> None:
    output(build("arbiter_nics"))


def test_chosen_numbers_do_not_chain_in_the_ledger(build: Callable[..., Path]) -> None:
    output(build("ledger_chains", ("arbiter/ledger.c",)))
