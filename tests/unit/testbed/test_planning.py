"""What the testbed plans: the same work for every mode, cut into batches and bytes as the simulator does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from bench.sim.cluster import ConfigError
from bench.sim.policies.dscp import last_stage_bytes, load_bytes
from bench.sim.workload import TraceError
from bench.testbed.batches import Unit, batch_command, shipped_bytes
from bench.testbed.daemons import DEFAULTS, STALE_AFTER, stretched
from bench.testbed.marks import PLANNING_SEEDS, classes_of, marks_of
from bench.testbed.modes import MODES, check_fetch, parse_modes, rotated
from bench.testbed.rounds import parse_seeds
from bench.testbed.scale import MESSAGE_CLUSTER_BYTES, Scale, parse_rate
from bench.testbed.scenario import PREFILL_HOSTS, RATES, UNITS, WORKLOADS, Scenario, cluster_of, requests_of
from bench.testbed.simulate import not_simulated, simulation_of
from mfsd.node.config_file import parse

SCALE = Scale()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_requests_are_the_same_for_every_mode_and_differ_between_seeds(workload: str) -> None:
    scenario = Scenario(workload=workload, rate=RATES[workload], duration_s=3)

    def planned(seed: int) -> list[object]:
        this = Scenario(workload=workload, rate=RATES[workload], duration_s=3, seed=seed)
        return [
            (r.arrival_s, r.new_tokens, r.unit, r.decode, r.deadline_s) for r in requests_of(this, cluster_of(this))
        ]

    assert planned(1) == planned(1) != planned(2)
    requests = requests_of(scenario, cluster_of(scenario))
    assert len(requests) == round(RATES[workload] * PREFILL_HOSTS * 3)
    for request in requests:
        assert request.owners == (((scenario.pool_nics[0], 1.0),) if request.context_tokens else ())
        assert 0 <= request.unit < UNITS and 0 <= request.decode < scenario.decode_hosts
        assert request.deadline_s == pytest.approx(request.arrival_s + 3 * request.isolated_s)
    assert {r.decode for r in requests} == set(range(scenario.decode_hosts))
    assert [scenario.hosts.index("pool")] == list(scenario.pool_nics)


def test_each_request_has_one_of_several_owners_and_all_else_stays() -> None:
    one, three = (
        Scenario(rate=2.0, duration_s=10, decode_hosts=2, pool_hosts=hosts, slow_owner=0.25) for hosts in (1, 3)
    )
    assert three.hosts[-3:] == ["pool0", "pool1", "pool2"] and list(three.pool_nics) == [6, 7, 8]
    assert one.slow_hosts == {"pool": 0.25} and three.slow_hosts == {"pool2": 0.25}
    assert not Scenario(pool_hosts=3).slow_hosts
    alone, shared = (requests_of(s, cluster_of(s)) for s in (one, three))
    for before, after in zip(alone, shared, strict=True):
        assert (before.arrival_s, before.new_tokens, before.decode) == (after.arrival_s, after.new_tokens, after.decode)
        assert len(after.owners) == (1 if after.context_tokens else 0)
    assert {nic for request in shared for nic, _ in request.owners} == {6, 7, 8}
    cluster = cluster_of(three)
    unit = Unit(cluster, SCALE, 0)
    for request in shared:
        if request.unit == 0:
            unit.arrived(request)
    batch = unit.next_batch(0.0)
    assert batch is not None
    lines = [line.split() for rank in range(2) for line in batch_command(batch, rank, SCALE, 0, 0.0).split("\n")[1:]]
    owners = {part.request.number: part.request.owners for part in batch.requests}
    assert lines and all(int(line[4]) == (owners[int(line[0])][0][0] if owners[int(line[0])] else 0) for line in lines)


def test_requests_may_come_from_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "mine.jsonl"
    rows = [
        {"timestamp": i / 2, "input_length": 600 + i, "output_length": 5, "hash_ids": [1, 2 + i]} for i in range(30)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    scenario = Scenario(workload=str(trace), rate=1.0, duration_s=5, longest_tokens=610)
    requests = requests_of(scenario, cluster_of(scenario))
    assert len(requests) == 20
    lengths = [r.new_tokens + r.context_tokens for r in requests]
    assert lengths == [min(610, 600 + i) for i in range(20)]
    assert requests[0].context_tokens == 0 and all(r.context_tokens > 0 for r in requests[1:])
    with pytest.raises(TraceError, match="need 40"):
        requests_of(too_long := Scenario(workload=str(trace), rate=1.0, duration_s=10), cluster_of(too_long))


def test_batches_hold_every_token_once_and_ship_every_byte() -> None:
    scenario = Scenario(rate=3.0, duration_s=6)
    cluster = cluster_of(scenario)
    requests = requests_of(scenario, cluster)
    units = [Unit(cluster, SCALE, u) for u in range(UNITS)]
    for request in requests:
        units[request.unit].arrived(request)
    shipped: dict[int, int] = {}
    fetched: dict[int, int] = {}
    ended: set[int] = set()
    numbers: set[int] = set()
    for unit in units:
        while batch := unit.next_batch(0.0):
            assert batch.number not in numbers
            numbers.add(batch.number)
            assert len(batch.requests) <= scenario.batch_tokens
            for part in batch.requests:
                number = part.request.number
                assert number not in ended
                shipped[number] = shipped.get(number, 0) + part.push_bytes * batch.layers
                fetched[number] = fetched.get(number, 0) + part.fetch_bytes
                ended |= {number} if part.is_last else set()
    assert any(r.new_tokens > scenario.batch_tokens for r in requests), "no prompt is cut: the test sees too little"
    assert ended == {r.number for r in requests}
    for request in requests:
        assert shipped[request.number] == shipped_bytes(cluster, SCALE, request)
        assert fetched[request.number] == SCALE.size(request.remote_tokens * cluster.kv_bytes)


@pytest.mark.parametrize("scheduler", ["fcfs", "fit"])
def test_what_is_loaded_first_joins_no_batch_before_and_every_byte_is_shipped(scheduler: str) -> None:
    """Half of the requests compute their reuse again: they ship as many bytes as if they had fetched it."""
    scenario = Scenario(rate=3.0, duration_s=6, fetch="loaded")
    cluster = cluster_of(scenario)
    requests = [r for r in requests_of(scenario, cluster) if r.unit == 0]
    unit = Unit(cluster, SCALE, 0, scheduler)
    states = [unit.arrived(request) for request in requests]
    loads = [state for state in states if state.request.remote_tokens]
    assert len(loads) > 10 and all(state.request.group >= 0 for state in states)
    for state in loads[::2]:
        unit.recompute(state)
        assert state.request.remote_tokens == 0 and not state.request.owners
    loading = {state.request.number for state in loads[1::2]}
    shipped = Counter[int]()
    now_s = 0.0

    def run() -> None:
        nonlocal now_s
        while batch := unit.next_batch(now_s):
            for part in batch.requests:
                assert part.request.number not in loading and part.fetch_bytes == 0
                shipped[part.request.number] += part.push_bytes * batch.layers
            now_s += 0.1
            unit.ended(now_s)

    run()
    assert {state.request.number for state in unit.queue} == loading
    for number in sorted(loading):
        loading.discard(number)
        unit.loaded(number)
    run()
    assert not unit.queue
    for request in requests:
        assert shipped[request.number] == shipped_bytes(cluster, SCALE, request)


def test_what_a_decision_sees_grows_with_what_queues() -> None:
    scenario = Scenario(rate=3.0, duration_s=6, fetch="loaded")
    cluster = cluster_of(scenario)
    requests = [r for r in requests_of(scenario, cluster) if r.remote_tokens]
    alone, busy = Unit(cluster, SCALE, 0), Unit(cluster, SCALE, 0)
    for request in requests[1:6]:
        busy.loaded(busy.arrived(request).request.number)
    states = [unit.arrived(requests[0]) for unit in (alone, busy)]
    first, second = (u.view_of(s, 0.5, 0.0) for u, s in zip((alone, busy), states, strict=True))
    assert (first.queue_s, first.waiting, first.fetch_s) == (0.0, 0, 0.5) and second.waiting == 5
    assert second.queue_s > 0 and first.whole_s > first.rest_s > 0
    assert busy.needed_s(states[1], 0.0) < alone.needed_s(states[0], 0.0) < requests[0].deadline_s
    assert busy.next_batch(0.0) is not None
    assert busy.view_of(states[1], None, 0.0).queue_s > busy.view_of(states[1], None, 1000.0).queue_s


def test_requests_are_ordered_by_the_mode_or_by_the_options() -> None:
    plain, both, cost = parse_modes("mfs,mfs+fit+slo,static+cost", scheduler="edf")
    assert (plain.name, plain.scheduler, plain.reuse) == ("mfs", "edf", "always")
    assert (both.name, both.scheduler, both.reuse, both.policy) == ("mfs+fit+slo", "fit", "slo", plain.policy)
    assert (cost.name, cost.scheduler, cost.reuse) == ("static+cost", "edf", "cost") and "cost" in cost.says
    check_fetch([plain, both, cost], "loaded")
    check_fetch([plain], "batch")


def test_decode_workers_are_chosen_where_the_mode_says_so() -> None:
    plain, backlog, all_of_it = parse_modes("mfs,mfs+backlog,mfs+fit+slo+backlog", scheduler="edf")
    assert not plain.by_backlog and "what their ports owe" not in plain.says
    assert backlog.by_backlog and (backlog.scheduler, backlog.reuse) == ("edf", "always")
    assert all_of_it.by_backlog and (all_of_it.scheduler, all_of_it.reuse) == ("fit", "slo")
    assert "what their ports owe" in backlog.says and backlog.policy == plain.policy
    (one_lane,) = parse_modes("mfs+backlog", lanes=False)
    assert one_lane.by_backlog and not one_lane.apart
    check_fetch([backlog], "batch")


def test_the_simulator_chooses_among_the_same_decode_workers() -> None:
    """And not among the owners' NICs, which are behind them."""
    scenario = Scenario(workload="agent", rate=3.0, duration_s=4, decode_hosts=3, pool_hosts=2)
    at_random, by_backlog = (
        [state.request.decode for state in simulation_of(scenario, SCALE, mode).states]
        for mode in parse_modes("mfs,mfs+backlog")
    )
    assert set(by_backlog) == set(at_random) == {0, 1, 2} and by_backlog != at_random
    counts = Counter(by_backlog)
    assert max(counts.values()) < len(by_backlog) / 2


def test_ranks_of_a_unit_agree_about_their_collectives() -> None:
    scenario = Scenario(rate=2.0, duration_s=3)
    cluster = cluster_of(scenario)
    unit = Unit(cluster, SCALE, 0)
    for request in requests_of(scenario, cluster)[:4]:
        unit.arrived(request)
    batch = unit.next_batch(0.0)
    assert batch is not None
    words = [batch_command(batch, rank, SCALE, 10**9, unit.wire_s(batch)).split("\n")[0].split() for rank in range(2)]
    sent = [list(map(int, w[5:9])) for w in words]  # send, receive of dispatch; send, receive of combine
    for first, second in (sent, sent[::-1]):
        assert (first[0], first[2]) == (second[1], second[3])
    for rank, w in enumerate(words):
        assert int(w[-1]) == len(batch.parts[rank])
        assert int(w[-3]) > 10**9, "deadlines are moments of this machine's clock"


def test_scaling_keeps_the_ratio_of_transfer_to_compute() -> None:
    fast_s = 1e6 / (50e9 / 8)
    for scale in (Scale(), Scale(100e6, 5.0), Scale(1e9, 0.5)):
        slow_s = scale.size(1e6) / (scale.link_bits_per_s / 8)
        assert slow_s / scale.time == pytest.approx(fast_s, rel=0.01)
        assert scale.ns(fast_s) == pytest.approx(slow_s * 1e9, rel=0.01)
        assert scale.message_bytes == pytest.approx(MESSAGE_CLUSTER_BYTES * scale.bytes, rel=0.2)
    assert SCALE.message_bytes == 131_072 and Scale(100e9, 1000.0).message_bytes == 16 << 20
    assert SCALE.size(0) == 0 and SCALE.size(1) == 64 and SCALE.size(12345.6) % 8 == 0


def test_periods_are_stretched_as_far_as_they_can_be_configured() -> None:
    for time, heartbeat_s in ((0.5, 1.0), (2.0, 2.0), (10.0, 10.0), (1000.0, 10.0)):
        leader, arbiter = (
            stretched(each.heartbeat_ns, Scale(time=time)) for each in (DEFAULTS.coordinator, DEFAULTS.arbiter)
        )
        text = (
            f'[coordinator]\nheartbeat = "{leader}"\n'
            f'[arbiter]\nstale_after = "{STALE_AFTER}"\nheartbeat = "{arbiter}"\n'
        )
        config = parse(text, "testbed.toml")
        assert config.coordinator.heartbeat_ns == heartbeat_s * 1e9
        assert config.arbiter.stale_after_ns >= 2 * config.arbiter.heartbeat_ns


@pytest.mark.parametrize(
    ("text", "bits"), [("300mbit", 300e6), ("1gbit", 1e9), ("2.5 Gbit/s", 2.5e9), ("900kbit", 9e5)]
)
def test_rates_are_read(text: str, bits: float) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: parse_rate("300"), "--link 300: write a number and kbit"),
        (lambda: Scale(link_bits_per_s=1e3), "--link 0.001mbit: use 1mbit"),
        (lambda: Scale(time=0), "--time-scale 0: use"),
        (
            lambda: parse_modes("fifo,fast"),
            "'fast' is none of fifo, dscp, dscp-size, static, paper, paper-defaults, mfs",
        ),
        (lambda: parse_seeds("1,two"), "--seed 1,two: use whole numbers"),
        (lambda: Scenario(rate=0), "--rate 0: must be above 0"),
        (lambda: Scenario(duration_s=float("nan")), "--duration nan"),
        (lambda: Scenario(decode_hosts=0), "--decode-hosts 0: use 1 to 8"),
        (lambda: Scenario(pool_hosts=9), "--pool-hosts 9: use 1 to 8"),
        (lambda: Scenario(slow_owner=0), "--slow-owner 0: use 0.01 to 1"),
        (lambda: Scenario(signals="some"), "--signals some: use one of all, nccl"),
        (lambda: Scenario(fetch="late"), "--fetch late: use one of batch, loaded"),
        (
            lambda: parse_modes("mfs+slow"),
            "'mfs+slow' is none of fifo, dscp, dscp-size, static, paper, paper-defaults, mfs, alone or with",
        ),
        (lambda: parse_modes("mfs", scheduler="best"), "--scheduler best: use one of fcfs, edf"),
        (lambda: parse_modes("mfs", reuse="never"), "--reuse never: use one of always, slo, cost"),
        (lambda: check_fetch(parse_modes("mfs+slo"), "batch"), "mode mfs+slo, reuse slo, --fetch batch: what is"),
        (lambda: check_fetch(parse_modes("dscp+slo"), "loaded"), "mode dscp+slo, reuse slo: nothing knows what"),
        (
            lambda: parse_modes("mfs,static+backlog"),
            "'static+backlog' has no coordinator that says what ports owe; use",
        ),
        (lambda: parse_modes("fifo,dscp", lanes=False), "'dscp' is priorities on the wire, which --no-lanes takes"),
        (lambda: requests_of(s := Scenario(rate=50, duration_s=1), cluster_of(s)), "--rate 50: the GPUs can compute"),
        (lambda: requests_of(s := Scenario(workload="nope"), cluster_of(s)), "--workload nope: use one of"),
    ],
)
def test_mistakes_get_one_line_with_option_value_and_remedy(wrong: object, says: str) -> None:
    assert callable(wrong)
    with pytest.raises(ConfigError) as raised:
        wrong()
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_every_mode_has_every_place_in_turn() -> None:
    modes = parse_modes("fifo,dscp,mfs,fifo")
    assert [m.name for m in modes] == ["fifo", "dscp", "mfs"]
    orders = [[m.name for m in rotated(modes, turn)] for turn in range(3)]
    assert all(sorted(order) == ["dscp", "fifo", "mfs"] for order in orders)
    for place in range(3):
        assert len({order[place] for order in orders}) == 3


def test_only_scheduled_modes_have_lanes_to_choose_from() -> None:
    for mode in MODES.values():
        for stage in (1, 3):
            assert len(mode.lanes(stage)) == (8 if mode.scheduled else {1: 4, 3: 3}[stage] if mode.by_size else 1)
        assert mode.lanes(2) == [mode.collective_class]
    assert {MODES["fifo"].lanes(stage)[0] for stage in (1, 2, 3)} == {7}
    assert len({MODES["dscp"].lanes(stage)[0] for stage in (1, 2, 3)}) == 3


def test_marks_by_size_are_known_before_the_requests_are() -> None:
    """The same for every seed; each class has its share of another seed's transfers, small ones in the high ones."""
    scenario = Scenario(workload="conversation", rate=2.0, duration_s=13)
    marks = marks_of(scenario)
    assert marks == marks_of(msgspec.structs.replace(scenario, seed=7))
    assert 1 not in PLANNING_SEEDS and len(PLANNING_SEEDS) == 10
    mode, cluster = MODES["dscp-size"], cluster_of(scenario)
    classes = classes_of(mode, scenario, cluster)
    requests = requests_of(scenario, cluster)
    for stage, which, size in ((1, 0, load_bytes), (3, 1, last_stage_bytes)):
        moved = sorted((size(cluster, r), classes(r)[which]) for r in requests if size(cluster, r) > 0)
        assert [k for _, k in moved] == sorted(k for _, k in moved)
        counts = Counter(k for _, k in moved)
        assert list(counts) == mode.lanes(stage)
        assert min(counts.values()) > len(moved) / len(counts) / 3
    assert {MODES["dscp"].p2d_class} == {classes_of(MODES["dscp"], scenario, cluster)(r)[1] for r in requests}


def test_without_lanes_every_stage_of_every_mode_has_the_same_class() -> None:
    modes = parse_modes(None, lanes=False)
    assert [mode.name for mode in modes] == [name for name in MODES if not name.startswith("dscp")]
    for mode in modes:
        assert not mode.apart and {tuple(mode.lanes(stage)) for stage in (1, 2, 3)} == {(7,)}
        assert (mode.policy, mode.coordinator) == (MODES[mode.name].policy, MODES[mode.name].coordinator)
    assert parse_modes(None) == list(MODES.values())


def test_the_simulator_says_what_it_does_not_know() -> None:
    assert not not_simulated(Scenario(pool_hosts=3, signals="nccl"))
    assert "--slow-owner" in not_simulated(Scenario(slow_owner=0.5))
    assert "--no-lanes" in not_simulated(Scenario(lanes=False))
