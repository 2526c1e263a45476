"""What of NIXL's adapter needs no NIXL: descriptors, pieces, parameters of lanes, the network card."""

from __future__ import annotations

import os
import struct
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_adapter.metadata import Metadata
from mooncake_adapter.mooncake import network as mooncake_network
from mooncake_adapter.nixl import network
from mooncake_adapter.nixl.descriptors import Prepared, rows_of
from mooncake_adapter.nixl.engine_class import EngineClass, with_class
from mooncake_adapter.nixl.lanes import Backends, named_in
from mooncake_adapter.nixl.later import AGE_PARTS, Turn
from mooncake_adapter.nixl.pieces import Piece, by_owner, cut, shortened
from mooncake_adapter.nixl.plugins import Plugins, alias, is_alias
from mooncake_adapter.nixl.transfers import Part, State, Transfer
from mooncake_adapter.warn_once import WarnOnce

LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


def rows(lengths: list[int], start: int = 1 << 40) -> np.ndarray:
    starts = np.cumsum([0, *lengths[:-1]]) + start
    return np.array([(a, n, 0) for a, n in zip(starts, lengths, strict=True)], dtype=np.uint64)


@given(LENGTHS, st.integers(1, 4000))
def test_pieces_are_all_of_it_once_and_in_order(lengths: list[int], piece_bytes: int) -> None:
    made = rows(lengths)
    pieces = cut(made, [(Metadata(1), np.arange(len(made)))], lambda address: 3, piece_bytes)
    positions = [at for piece in pieces if piece.positions is not None for at in piece.positions]
    assert positions == list(range(len(made)))
    assert sum(piece.size_bytes for piece in pieces) == sum(lengths)
    assert all(piece.size_bytes < piece_bytes + max(lengths) for piece in pieces)
    assert {piece.metadata for piece in pieces} == {Metadata(1, layer=3)}


@given(LENGTHS, st.integers(1, 4000))
def test_shortened_descriptors_are_the_same_memory(lengths: list[int], piece_bytes: int) -> None:
    local, remote = shortened(rows(lengths), rows(lengths, 1 << 50), piece_bytes)
    assert int(local[:, 1].max()) <= piece_bytes
    assert int(local[:, 1].sum()) == sum(lengths)
    assert (local[1:, 0] == local[:-1, 0] + local[:-1, 1]).all(), "without a gap"
    assert (remote[:, 0] - local[:, 0] == (1 << 50) - (1 << 40)).all()
    assert (remote[:, 1] == local[:, 1]).all()


def test_requests_are_told_apart_and_layers_are_not() -> None:
    owners = {0: Metadata(1, layer=1), 10: Metadata(2), 20: Metadata(1, layer=2)}
    found = by_owner(np.array([0, 10, 20], dtype=np.uint64), owners.__getitem__)
    assert [(metadata.request_id, positions.tolist()) for metadata, positions in found] == [(1, [0, 2]), (2, [1])]


def test_strides_are_written_out() -> None:
    strided = np.array([(100, 8, 0, 16, 3), (500, 4, 1, 4, 2)], dtype=np.uint64)
    assert rows_of(strided).tolist() == [[100, 8, 0], [116, 8, 0], [132, 8, 0], [500, 4, 1], [504, 4, 1]]
    assert rows_of([(1, 2, 3)]).tolist() == [[1, 2, 3]]


def test_a_list_that_is_released_is_kept_while_it_is_used() -> None:
    released: list[bool] = []
    prepared = Prepared("", None, rows([4, 4]), lambda: released.append(True))
    assert prepared.uniform_bytes == 4
    prepared.use()
    prepared.release()
    assert not released
    prepared.unuse()
    assert released == [True]


def test_an_engine_gets_its_class_beside_what_the_program_says() -> None:
    assert with_class({}, 46) == {"engine_config": "IB_TRAFFIC_CLASS=184"}
    assert with_class({"engine_config": "MAX_RMA_RAILS=1"}, 8)["engine_config"] == "MAX_RMA_RAILS=1,IB_TRAFFIC_CLASS=32"
    own = {"engine_config": "IB_TRAFFIC_CLASS=4"}
    assert with_class(own, 8) == own
    assert with_class({"a": "b"}, None) == {"a": "b"}


@pytest.fixture
def infiniband(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The NIC that UCX takes is InfiniBand."""
    (tmp_path / "mlx5_0/ports/1").mkdir(parents=True)
    (tmp_path / "mlx5_0/ports/1/link_layer").write_text("InfiniBand\n")
    monkeypatch.setattr(mooncake_network, "DEVICES", tmp_path)
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    for name in ("UCX_TLS", "UCX_IB_SL", "UCX_IB_TRAFFIC_CLASS", "MFS_SET_CLASSES", "MFS_SERVICE_LEVELS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("infiniband")
def test_a_lane_has_the_service_level_of_its_class_on_infiniband(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MFS_SERVICE_LEVELS", "46:5,34:4!,26:4")
    engines = EngineClass(WarnOnce())
    assert engines.allowed({}) and not engines.allowed({"engine_config": "IB_SL=3"})
    assert engines.parameters({}, 46) == {"engine_config": "IB_TRAFFIC_CLASS=184,IB_SL=5"}
    assert engines.parameters({}, 8) == {"engine_config": "IB_TRAFFIC_CLASS=32"}, "it has no level"
    assert engines.apart(26, 46) and not engines.apart(26, 34) and not engines.apart(8, 46)
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_1:1")
    roce = EngineClass(WarnOnce())
    assert roce.parameters({}, 46) == {"engine_config": "IB_TRAFFIC_CLASS=184"}, "only where the NIC is InfiniBand"
    assert roce.apart(26, 34)


@pytest.mark.usefixtures("infiniband")
def test_a_level_for_the_whole_process_takes_the_lanes_unless_mfs_run_has_set_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MFS_SERVICE_LEVELS", "46:5")
    monkeypatch.setenv("UCX_IB_SL", "3")
    assert not EngineClass(WarnOnce()).allowed({})
    assert "UCX_IB_SL=3 sets the class of every engine of this process" in caplog.text
    monkeypatch.setenv("MFS_SET_CLASSES", "NCCL_IB_SL UCX_IB_SL")
    engines = EngineClass(WarnOnce())
    assert engines.allowed({})
    with engines.counts():
        assert "UCX_IB_SL" not in os.environ
    assert os.environ["UCX_IB_SL"] == "3", "what the program starts has it still"


@pytest.mark.usefixtures("infiniband")
@pytest.mark.parametrize("levels", [None, "46=5"])
def test_lanes_without_levels_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, levels: str | None
) -> None:
    if levels is not None:
        monkeypatch.setenv("MFS_SERVICE_LEVELS", levels)
    assert EngineClass(WarnOnce()).allowed({})
    assert "mlx5_0 is InfiniBand and MFS_SERVICE_LEVELS gives no service level" in caplog.text
    assert levels is None or "'46=5' is not DSCP:LEVEL" in caplog.text


def test_lanes_are_found_by_name_and_not_seen() -> None:
    backends = Backends({"UCX": 1})
    backends.lanes = {alias(3): 2}
    assert backends[alias(3)] == 2
    assert list(backends) == ["UCX"] and alias(3) not in backends
    with pytest.raises(KeyError):
        backends["OBJ"]
    assert is_alias(alias(0)) and not is_alias("UCX") and not is_alias("UCX_MFSX")


def test_a_name_in_metadata_is_a_whole_one() -> None:
    metadata = b"..|t" + struct.pack("<Q", 8) + b"UCX_MFS1" + b"|c..."
    assert named_in(metadata, "UCX_MFS1") and not named_in(metadata, "UCX")


@pytest.mark.parametrize(
    ("transports", "devices", "expected"),
    [
        ("", "", "mlx5_0"),
        ("tcp", "", ""),
        ("tcp,sm", "lo", ""),
        ("rc_v", "mlx5_3:1,mlx5_1:1", "mlx5_3"),
        ("", "lo", ""),
        ("", "all", "mlx5_0"),
        ("srd,tcp", "", "mlx5_0"),
    ],
)
def test_the_device_is_the_first_that_ucx_may_take(
    monkeypatch: pytest.MonkeyPatch, transports: str, devices: str, expected: str
) -> None:
    monkeypatch.setenv("UCX_TLS", transports)
    monkeypatch.setenv("UCX_NET_DEVICES", devices)
    monkeypatch.setattr(network, "device_of", lambda choice: choice.partition(",")[0] or "mlx5_0")
    assert network.device_chosen() == expected


def test_what_takes_long_is_asked_about_ever_less_often() -> None:
    piece = Piece(Metadata(), None, 1)
    transfer = Transfer(1, cast(Any, None), "peer", [piece], 3, False)
    part = Part(piece, cast(Any, None))
    part.state = State.PROC
    transfer.parts.append(part)
    turn = Turn(transfer)
    asked_ms = [ms for ms in range(0, 16_000, 2) if turn.comes(ms / 1e3)]
    assert all(after - before <= 2 + before / AGE_PARTS for before, after in pairwise(asked_ms))
    assert len(asked_ms) < 200
    assert not turn.comes(16.0)
    transfer.todo.append(piece)
    assert turn.comes(16.0), "something else is under way"
    part.state = State.WAITING
    assert all(turn.comes(16.0 + ms / 1e3) for ms in range(100)), "it waits for its permit"


@pytest.fixture
def wheels_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as NIXL's wheel has it, and a place of its own for temporary folders."""
    own, temporary = tmp_path / "own", tmp_path / "tmp"
    for folder in (own, temporary):
        folder.mkdir()
    for name in ("UCX", "POSIX"):
        (own / f"libplugin_{name}.so").touch()
    monkeypatch.setenv("NIXL_PLUGIN_DIR", str(own))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return temporary


def test_processes_share_one_folder_of_links(wheels_plugins: Path) -> None:
    """Engines' workers end by SIGKILL: one folder of each would be left."""
    for _ in range(3):
        with Plugins("nixl.agent", WarnOnce()).named(2):
            folder = Path(os.environ["NIXL_PLUGIN_DIR"])
            assert sorted(path.name for path in folder.iterdir()) == [
                *("libplugin_POSIX.so", "libplugin_UCX.so", "libplugin_UCX_MFS0.so", "libplugin_UCX_MFS1.so")
            ]
            assert len({path.resolve() for path in folder.iterdir()}) == 2
        (folder / "libplugin_UCX_MFS1.so").unlink()  # as what cleans temporary folders does
    assert list(wheels_plugins.iterdir()) == [folder]


def test_a_folder_that_others_can_write_to_is_not_used(wheels_plugins: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Plugins("nixl.agent", WarnOnce()).named(2):
        (folder,) = wheels_plugins.iterdir()
    folder.chmod(0o777)
    own = os.environ["NIXL_PLUGIN_DIR"]
    with Plugins("nixl.agent", WarnOnce()).named(2):
        assert os.environ["NIXL_PLUGIN_DIR"] == own
    assert "no lanes" in caplog.text and str(folder) in caplog.text
