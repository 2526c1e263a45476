"""What a playground's programs are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from mfsd.node.config_file import load
from mfsd.playground.cluster import Cluster, Options, layout
from mfsd.soft_roce.rate import parse_rate


@pytest.mark.parametrize("rate", ["200mbit", "1.5Gbit/s", "2gbps", " 1mbit ", "0.01Tbit"])
def test_each_way_to_write_a_rate_is_one_that_all_programs_read(rate: str, tmp_path: Path) -> None:
    options = Options(nodes=4, rate_bytes_per_s=parse_rate(rate), load=True, etcd=None)
    cluster = Cluster(options, layout(options, tmp_path, [(1, 2)]), lambda _: None)
    cluster._coordinators()
    for part in cluster._daemons():
        assert parse_rate(part.command[part.command.index("--rate") + 1]) >= parse_rate(rate)
    files = sorted(tmp_path.glob("*.toml"))
    assert len(files) == 5
    read = [load(file) for file in files]
    assert read[0].coordinator.rate_default_bytes_per_s == parse_rate(rate)
    assert [c.nic["mfs0"].rate_bytes_per_s for c in read[1:]] == [parse_rate(rate) * n for n in (1, 1, 1, 2)]
