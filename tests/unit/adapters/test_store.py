"""The adapted store against a real Mooncake master, over TCP: reads are stage 1, writes background."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mooncake.store
import numpy as np
import pytest

from bench.ports import free_port
from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.mooncake.store import READS, WRITES, parameters, writer_setup
from mooncake_adapter.mooncake.store import adapted as adapted_store
from mooncake_adapter.session import Holder
from mooncake_adapter.warn_once import WarnOnce
from tests.support.mooncake_peer import memory
from tests.support.scripted_session import ScriptedSession
from tests.support.waiting import eventually

STOCK = mooncake.store.MooncakeDistributedStore
MASTER = Path(mooncake.store.__file__).with_name("mooncake_master")
SIZE = 65536


@dataclass
class Shelf:
    store: Any
    area: Any
    address: int
    session: ScriptedSession
    sources: MetadataSources


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, metrics = free_port(), free_port()
    MASTER.chmod(0o755)
    folder = tmp_path_factory.mktemp("master")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [MASTER, f"--rpc_port={port}", f"--metrics_port={metrics}", "--logtostderr"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LD_LIBRARY_PATH": str(MASTER.parent)},
        )
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait()


@pytest.fixture(scope="module")
def shared(master: str) -> Shelf:
    session, once = ScriptedSession(), WarnOnce()
    sources = MetadataSources(once)
    kind = adapted_store(STOCK, Holder(lambda: cast(Any, session)), sources, once)

    def ready() -> Any:
        store = kind()
        arguments = ("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master)
        return store if store.setup(*arguments) == 0 else None

    store = eventually(ready, "the master")
    area, address = memory(16 << 20)
    assert store.register_buffer(address, 16 << 20) == 0
    return Shelf(store, area, address, session, sources)


@pytest.fixture
def shelf(shared: Shelf) -> Shelf:
    shared.session.__init__()
    shared.sources.ranges.clear()
    return shared


def test_every_public_name_and_text_of_the_wheels_class_is_there(shelf: Shelf) -> None:
    adapted = type(shelf.store)
    public = {name for name in dir(STOCK) if not name.startswith("_")}
    assert {name for name in dir(adapted) if not name.startswith("_")} == public
    assert all(getattr(adapted, name).__doc__ == getattr(STOCK, name).__doc__ for name in public)
    assert isinstance(shelf.store, STOCK)


def test_every_method_that_moves_bytes_is_known() -> None:
    """A new wheel with a new way to move bytes fails here."""
    quiet = {"get_size", "get_hostname", "get_replica_desc", "get_offload_rpc_read_count"}
    for name in dir(STOCK):
        moves = any(word in name for word in ("get", "put", "upsert", "pub_")) and not name.startswith("_")
        if moves and name not in quiet and "session" not in name and "replica" not in name:
            assert READS.match(name) or WRITES.match(name), name


def test_parameters_are_read_from_the_wheels_own_text() -> None:
    assert parameters(STOCK.put_from) == ["key", "buffer_ptr", "size", "config"]
    assert parameters(STOCK.batch_get_into) == ["keys", "buffer_ptrs", "sizes"]
    assert parameters(STOCK.put_parts) == ["key", "parts", "config"]
    assert parameters(STOCK.get) == ["arg0"]


def test_what_is_put_is_got(shelf: Shelf) -> None:
    assert shelf.store.put("a", b"x" * SIZE) == 0
    assert shelf.store.get("a") == b"x" * SIZE
    reported = [(task.transfer.stage, task.transfer.size_bytes, task.life) for task in shelf.session.tasks]
    assert reported == [(4, SIZE, ["wait", "complete"]), (1, SIZE, ["wait", "complete"])]


def test_buffers_batches_and_parts(shelf: Shelf) -> None:
    shelf.area[:SIZE] = b"y" * SIZE
    assert shelf.store.put_from("b", shelf.address, SIZE) == 0
    assert shelf.store.batch_put_from(["c", "d"], [shelf.address, shelf.address], [SIZE, 100]) == [0, 0]
    assert shelf.store.put_parts("e", b"12", b"345") == 0
    assert shelf.store.batch_get_into(["c", "d"], [shelf.address + SIZE, shelf.address + 3 * SIZE], [SIZE, SIZE]) == [
        SIZE,
        100,
    ]
    assert shelf.area[SIZE : 2 * SIZE] == b"y" * SIZE
    assert shelf.store.get_batch(["e", "c"]) == [b"12345", b"y" * SIZE]
    sizes = [task.transfer.size_bytes for task in shelf.session.tasks]
    assert sizes == [SIZE, SIZE + 100, 5, 2 * SIZE, 10]  # of several keys without sizes, the first one's counts


def test_a_batch_that_mixes_requests_is_split(shelf: Shelf) -> None:
    shelf.area[: 2 * SIZE] = b"p" * SIZE + b"q" * SIZE
    pointers = [shelf.address, shelf.address + SIZE]
    shelf.sources.ranges.add(pointers[0], SIZE, Metadata(1, layer=2))
    shelf.sources.ranges.add(pointers[1], SIZE, Metadata(2))
    assert shelf.store.batch_put_from(["p", "q"], pointers, [SIZE, SIZE]) == [0, 0]
    assert shelf.store.batch_get_into(keys=["q", "no such key"], buffer_ptrs=pointers, sizes=[SIZE, SIZE])[0] == SIZE
    reported = [(t.transfer.request_id, t.transfer.stage, t.transfer.layer) for t in shelf.session.tasks]
    assert reported == [(1, 4, 2), (2, 4, 0), (1, 1, 2), (2, 1, 0)]
    assert shelf.area[:SIZE] == b"q" * SIZE


def test_answers_and_errors_are_the_wheels_own(shelf: Shelf) -> None:
    assert shelf.store.get("nothing of this name") == b""
    assert shelf.store.get_into("nothing of this name", shelf.address, SIZE) < 0
    for wrong in (lambda s: s.put("k"), lambda s: s.get(1), lambda s: s.batch_get_into(["a"], "x", [1])):
        with pytest.raises(TypeError):
            wrong(shelf.store)


def test_what_the_wheel_takes_in_place_of_lists_is_taken(shelf: Shelf) -> None:
    shelf.area[: 2 * SIZE] = b"r" * SIZE + b"s" * SIZE
    pointers = [shelf.address, shelf.address + SIZE]
    assert shelf.store.batch_put_from(("r", "s"), tuple(pointers), (SIZE, SIZE)) == [0, 0]
    assert shelf.store.get_batch(("r", "s")) == [b"r" * SIZE, b"s" * SIZE]
    for number, pointer in enumerate(pointers):
        shelf.sources.ranges.add(pointer, SIZE, Metadata(number + 1))
    arrays = np.array(pointers, dtype=np.uint64), np.array([SIZE, SIZE], dtype=np.uint64)
    assert shelf.store.batch_get_into(["s", "r"], arrays[0], [SIZE, SIZE]) == [SIZE, SIZE]
    assert shelf.area[: 2 * SIZE] == b"s" * SIZE + b"r" * SIZE
    assert shelf.store.batch_get_into(["r", "s"], *arrays) == [SIZE, SIZE]
    assert shelf.store.batch_get_into_multi_buffers(["s", "r"], arrays[0][:, None], arrays[1][:, None]) == [SIZE, SIZE]
    assert shelf.area[: 2 * SIZE] == b"s" * SIZE + b"r" * SIZE


def test_context_tells_a_background_write_from_an_urgent_one(shelf: Shelf) -> None:
    with shelf.sources.transfer(Metadata(9, stage=3)):
        assert shelf.store.put("z", b"1") == 0
    assert shelf.session.tasks[0].transfer.stage == 3
    assert shelf.session.tasks[0].transfer.request_id == 9


@pytest.mark.parametrize(("text", "hold_s"), [("2000", 0.5), ("", 1.25), ("2s", 1.25)])
def test_a_call_is_held_for_a_quarter_of_the_lease(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, text: str, hold_s: float
) -> None:
    """A daemon that permits nothing delays it by that, all its pieces together; every byte is right."""
    monkeypatch.setenv("MFS_STORE_LEASE_MS", text)
    shelf.area[: 2 * SIZE] = b"p" * SIZE + b"q" * SIZE
    pointers = [shelf.address, shelf.address + SIZE]
    names = [f"held-{text}-{letter}" for letter in "pq"]
    assert shelf.store.batch_put_from(names, pointers, [SIZE, SIZE]) == [0, 0]
    for number, pointer in enumerate(pointers):
        shelf.sources.ranges.add(pointer, SIZE, Metadata(number + 1))
    shelf.session.tasks.clear()
    shelf.session.hold = lambda transfer: True
    assert shelf.store.batch_get_into(names[::-1], pointers, [SIZE, SIZE]) == [SIZE, SIZE]
    assert shelf.area[: 2 * SIZE] == b"q" * SIZE + b"p" * SIZE
    first, second = (task.waits_s for task in shelf.session.tasks)
    assert first == [hold_s] and second == [0.0], "the first wait uses it up"


def test_the_writing_client_has_no_segment_of_its_own() -> None:
    positional = ("10.0.0.1:1234", "P2PHANDSHAKE", 1 << 30, 1 << 20, "rdma", "mlx5_0", "10.0.0.2:50051")
    assert writer_setup(positional, {}) == (
        (),
        {
            "local_hostname": "10.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": 0,
            "local_buffer_size": 1 << 20,
            "protocol": "rdma",
            "rdma_devices": "mlx5_0",
            "master_server_addr": "10.0.0.2:50051",
        },
    )
    assert writer_setup((*positional, object()), {}) is None  # the program's own engine: not ours to double
