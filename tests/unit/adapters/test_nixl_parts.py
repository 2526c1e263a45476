"""What of NIXL's adapter needs no NIXL: descriptors, pieces, parameters of lanes, the network card."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_adapter.metadata import Metadata
from mooncake_adapter.nixl import network
from mooncake_adapter.nixl.descriptors import Prepared, rows_of
from mooncake_adapter.nixl.lanes import Backends, named_in, with_class
from mooncake_adapter.nixl.pieces import by_owner, cut, shortened
from mooncake_adapter.nixl.plugins import alias, is_alias

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
