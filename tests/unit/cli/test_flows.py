"""What `mfsctl flows` refuses before it asks a daemon."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from mfsd.cli.commands.flows import flows


@pytest.mark.parametrize("port", ["mlx5_0/up", "mlx5_0/", "mlx5_0/in/out2"])
def test_a_direction_that_there_is_not(port: str) -> None:
    with pytest.raises(click.BadParameter, match="write NIC, NIC/out or NIC/in"):
        flows(["--port", port], standalone_mode=False)


@pytest.mark.parametrize("port", ["mlx5_0", "mlx5_0/in", "/out"])
def test_a_nic_and_its_directions_are_asked_for(port: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:  # nothing answers there
        flows(["--port", port, "--socket", str(tmp_path / "run/m.sock")], standalone_mode=False)
    assert ended.value.code == 3
