"""Traces that are read, and generated workloads against the published statistics they are fitted to."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import pytest

from bench.sim import generators
from bench.sim.cluster import Config
from bench.sim.generators import HISTORY, generate, published, schedule
from bench.sim.point import Point, prepare
from bench.sim.workload import Row, TraceError, read_trace

OURS = [
    {"req_id": 0, "timestamp": 0.0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
    {"req_id": 1, "timestamp": 0.5, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
]
MOONCAKE = [
    {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [46, 47]},
    {"timestamp": 3000, "input_length": 1030, "output_length": 5, "hash_ids": [46, 47, 48]},
]
QWEN = [
    {"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 40, "output_length": 5, "type":
    "text", "turn": 1, "hash_ids": [9, 9, 8]},
    {"chat_id": 8, "parent_chat_id": 7, "timestamp": 1.5, "input_length": 40, "output_length": 5, "type":
    "text", "turn": 2, "hash_ids": [9, 8, 8]},
]  # fmt: skip
RAG = [
    {
        "req_id": 0,
        "timestamp": 0.0,
        "input_length": 700,
        "output_length": 5,
        "hash_ids": [0, 1, 2],
        "block_tokens": [512, 100, 80],
        "session_id": 3,
    }
]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def ideal_reuse(rows: Iterable[Row]) -> float:
    """Share of input tokens that a cache without limit, empty at first, would serve."""
    seen: set[int] = set()
    hit = total = 0
    for row in rows:
        known = 0
        for block in row.blocks:
            if block not in seen:
                break
            known += 1
        hit += row.prefix_tokens(known)
        total += row.input_tokens
        seen.update(row.blocks)
    return hit / total if total else 0.0


def test_formats_are_reported_apart(tmp_path: Path) -> None:
    ours = read_trace(write(tmp_path / "o.jsonl", OURS))
    assert [(r.arrival_s, r.block_tokens) for r in ours] == [(0.0, 512), (0.5, 512)]
    assert ideal_reuse(ours) == pytest.approx(1024 / 2100)
    mooncake = read_trace(write(tmp_path / "m.jsonl", MOONCAKE))
    assert mooncake[1].arrival_s == 3.0 and mooncake[1].block_tokens == 512
    qwen = read_trace(write(tmp_path / "q.jsonl", QWEN))
    # Content ids are chained: 9 at the start of both is shared, 9 or 8 behind something else is not.
    assert qwen[0].blocks[0] == qwen[1].blocks[0] and len({*qwen[0].blocks, *qwen[1].blocks}) == 5
    assert qwen[0].block_tokens == 16
    rag = read_trace(write(tmp_path / "r.jsonl", RAG))
    assert [rag[0].prefix_tokens(k) for k in range(4)] == [0, 512, 612, 692]


def test_parquet_is_read_like_jsonl(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.Table.from_pylist(OURS), tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet") == read_trace(write(tmp_path / "t.jsonl", OURS))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], ["empty"]),
        ([{**OURS[1]}, {**OURS[0]}], ["line 2", "0.0 s", "sort"]),
        ([{**OURS[0], "input_length": -4}], ["line 1", "input length", "-4"]),
        ([{**OURS[0], "input_length": "many"}], ["line 1", "input length", "many"]),
        ([{"timestamp": 0.0, "tokens": 4}], ["line 1", "input_length", "tokens"]),
        ([{**OURS[0], "output_length": -1}], ["line 1", "output length", "-1"]),
        ([{**OURS[0], "timestamp": float("nan")}], ["line 1", "arrival time", "nan"]),
    ],
)
def test_bad_rows_get_one_line_that_names_them(tmp_path: Path, rows: list[dict[str, object]], words: list[str]) -> None:
    with pytest.raises(TraceError) as error:
        read_trace(write(tmp_path / "bad.jsonl", rows))
    assert all(word in str(error.value) for word in ["bad.jsonl", *words])
    assert "\n" not in str(error.value)


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{nonsense\n")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    for name, words in (
        ("x.jsonl", "line 1: not JSON"),
        ("x.parquet", "not a readable Parquet"),
        ("none", "no such file"),
    ):
        with pytest.raises(TraceError, match=words):
            read_trace(tmp_path / name)


@pytest.mark.parametrize("name", generators.NAMES)
def test_generated_requests_match_the_published_statistics(name: str) -> None:
    """Mean and quantiles of prompt lengths, and the share of prompt tokens seen before, once history has
    filled the cache."""
    stats = published()[name]
    rows = generate(name, 600 if name == "agentic" else 5000, seed=5)
    lengths = sorted(r.input_tokens for r in rows)
    assert sum(lengths) / len(lengths) == pytest.approx(stats["mean_input"], rel=0.08)
    for percent in ("50", "90"):
        assert lengths[int(len(lengths) * float(percent) / 100)] == pytest.approx(
            stats["input_quantiles"][percent], rel=0.12
        )
    seen: set[int] = set()
    hit = total = 0
    for number, row in enumerate(rows):
        known = next((k for k, block in enumerate(row.blocks) if block not in seen), len(row.blocks))
        if number >= HISTORY:
            hit += row.prefix_tokens(known)
            total += row.input_tokens
        seen.update(row.blocks)
    assert hit / total == pytest.approx(stats["ideal_reuse"], abs=0.04)


@pytest.mark.parametrize("name", ["qwen-a", "qwen-b"])
def test_popular_prefixes_are_as_concentrated_as_published(name: str) -> None:
    """Hit ratio of an LRU cache that holds a tenth of all distinct blocks."""
    stats = published()[name]
    rows = generate(name, 6000, seed=5)
    distinct = len({block for row in rows for block in row.blocks})
    cache: OrderedDict[int, None] = OrderedDict()
    hit = total = 0
    for row in rows:
        known = next((k for k, block in enumerate(row.blocks) if block not in cache), len(row.blocks))
        hit += row.prefix_tokens(known)
        total += row.input_tokens
        for block in row.blocks:
            cache[block] = None
            cache.move_to_end(block)
            if len(cache) > distinct // 10:
                cache.popitem(last=False)
    assert hit / total == pytest.approx(stats["lru_hit_at_share_of_unique_blocks"]["0.10"], abs=0.1)


def test_same_seed_same_rows_other_seed_other_rows() -> None:
    assert generate("qwen-b", 50, 1) == generate("qwen-b", 50, 1)
    assert generate("qwen-b", 50, 1) != generate("qwen-b", 50, 2)


def test_arrivals() -> None:
    rows = [Row(t, 10, 1, (), 64) for t in (0.0, 3.0, 3.0, 3.0, 6.0)]
    recorded = schedule(rows, rate=5.0, seed=1, recorded=True)
    times = [r.arrival_s for r in recorded]
    assert times == sorted(times) and len(set(times)) == 5, "equal times are spread, in order"
    many = [Row(0.0, 10, 1, (), 64)] * 4000
    poisson = schedule(many, rate=20.0, seed=1)
    assert poisson[-1].arrival_s == pytest.approx(200, rel=0.1)
    bursty = schedule(many, rate=20.0, seed=1, burst=4.0)
    assert bursty[-1].arrival_s == pytest.approx(200, rel=0.2)
    assert len({r.arrival_s for r in bursty}) == pytest.approx(1000, rel=0.15)


def test_each_seed_takes_requests_of_its_own_behind_those_that_fill_the_caches(tmp_path: Path) -> None:
    rows = [
        {"req_id": n, "timestamp": float(n), "input_length": 600 + n, "output_length": 1, "hash_ids": [0, n + 1]}
        for n in range(100)
    ]
    trace = write(tmp_path / "t.jsonl", rows)
    starts = set()
    for seed in range(6):
        config = Config(model="llama3-70b", gpus=32)
        _, requests = prepare(Point(config=config, workload=str(trace), seed=seed, requests=8, warmup=2, rate=0.1))
        lengths = [r.new_tokens + r.context_tokens for r in requests]
        assert lengths == list(range(lengths[0], lengths[0] + 10)), "in the order in which they were recorded"
        assert requests[0].context_tokens == (512 if lengths[0] > 600 else 0)
        starts.add(lengths[0])
    assert len(starts) > 2
