"""A wrong configuration stops the start with one line that names the file and the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from mfsd.policy.serve import Policy
from mfsd.serve.settings import Settings, SettingsError, Tier, read_tables, tables_in

GOOD = """
[serve]
policy = "hybrid"
[default]
ttft_ms = 1000
[tiers.chat]
ttft_ms = 500
tbt_ms = 50
importance = 1
[tenants]
acme = 4.0
[record]
folder = "/var/tmp/decisions"
"""


def read_file(path: Path) -> Settings:
    return read_tables(tables_in(path), str(path))


def test_a_file_says_what_is_not_the_default(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text(GOOD)
    settings = read_file(tmp_path / "serve.toml")
    assert settings.serve.policy is Policy.HYBRID
    assert settings.tiers == {"chat": Tier(500, 50, None, 1)}
    assert (settings.default.ttft_ms, settings.tenants, settings.record.files) == (1000, {"acme": 4.0}, 4)


def test_the_same_tables_may_come_from_the_engines_configuration() -> None:
    assert read_tables({"tiers": {"chat": {"ttft_ms": 500}}}, "here").tiers["chat"].ttft_ms == 500
    assert read_tables({}, "here") == Settings()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('[serve]\npolicy = "fastest"', "$.serve.policy"),
        ('[serve]\npolicy = "fastest"', "'fastest': use fcfs, edf, "),
        ("[serve]\npolcy = 1", "`polcy`; did you mean policy? - at `$.serve`"),
        ("[tiers.chat]\nttft = 1", "`ttft`; did you mean ttft_ms? - at `$.tiers[...]`"),
        ("[tiers.chat]\nspeed = 1", "`speed`; there are ttft_ms, tbt_ms, ttlt_ms, importance"),
        ("[serve]\nstep_tokens = 0", "step_tokens is 0: use 1 to"),
        ("[serve]\nspeed = 1", "speed"),
        ("[tiers.chat]\nttft_ms = -1", "ttft_ms is -1"),
        ("[tiers.chat]\nttft_ms = nan", "ttft_ms is nan"),
        ("[tiers.chat]\nttlt_ms = 86400000", "ttlt_ms is 86400000"),
        ('[tiers.chat]\ntbt_ms = "fast"', "$.tiers[...].tbt_ms"),
        ("[tiers.chat]\nimportance = 1001", "importance is 1001"),
        ("[tenants]\nacme = 0", "tenants.acme is 0"),
        ("[record]\nfiles = 0", "files is 0"),
        ("[record]\nsize_max_bytes = 1", "size_max_bytes is 1"),
        ("serve = 3", "$.serve"),
        ("[serve", ""),
    ],
)
def test_what_cannot_be_is_one_line_with_the_path(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        read_file(path)
    line = str(refused.value)
    assert line.startswith(f"{path}: ")
    assert field in line
    assert "\n" not in line


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_file(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="where: "):
        read_tables([1], "where")
