"""Numbers that no daemon can be asked about are refused where they are given, with a line for people."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mfsd.cli.ctl import main

TOO_LARGE = str(1 << 64)


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--request", TOO_LARGE],
        ["flows", "--request", TOO_LARGE],
        ["trace", "record", "--request", TOO_LARGE],
        ["trace", "record", "--batch", TOO_LARGE],
        ["explain", TOO_LARGE],
        ["explain", "1" * 5000],
        ["coordinator", "status", "--batches", str(1 << 32)],
        ["status", "--watch", "--interval", "nan"],
        ["top", "--interval", "nan"],
        ["flows", "--seconds", "nan"],
        ["trace", "record", "--seconds", "nan"],
    ],
)
def test_what_is_out_of_range_is_wrong_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    assert "Usage:" in result.output
