"""The configuration in force names the source of each value."""

from __future__ import annotations

from pathlib import Path

import pytest

from mfsd.node.effective import effective
from mfsd.node.options import Options
from mfsd.node.values import HostPort

AT = HostPort("host-1:9464")
GIVEN = {
    "socket": Options(socket=Path("/run/b/mfsd.sock")),
    "mode": Options(mode="observe"),
    "coordinators": Options(coordinators=[AT]),
    "metrics_listen": Options(metrics_listen=AT),
    "listen": Options(listen=AT),
    "advertise": Options(advertise=AT),
    "etcd": Options(etcd=[AT]),
}


@pytest.mark.parametrize("option", [name for name in Options.__struct_fields__ if name != "config_file"])
def test_what_an_option_says_is_from_the_command_line(option: str) -> None:
    values = effective(GIVEN[option].configuration(), GIVEN[option]).values
    assert [value.source for value in values].count("command line") == 1
