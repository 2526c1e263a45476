"""Where a vLLM finds the settings of its scheduler, and what --scheduling-policy priority does there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mfsd.policy.serve import Policy
from mfsd.serve.settings import Settings
from mooncake_adapter.vllm.serve_settings import CONFIG_FILE, CONFIG_TABLE, settings_of


def policy_of(tables: Any, by_priority: bool) -> tuple[Policy, list[str]]:
    warnings: list[str] = []
    additional = {} if tables is None else {CONFIG_TABLE: tables}
    settings = settings_of(additional, by_priority, lambda kind, text: warnings.append(text))
    return settings.serve.policy, warnings


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_FILE, raising=False)


def test_tables_of_vllm_go_before_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text('[serve]\npolicy = "edf"')
    monkeypatch.setenv(CONFIG_FILE, str(tmp_path / "serve.toml"))
    assert policy_of(None, by_priority=False) == (Policy.EDF, [])
    assert policy_of({"serve": {"policy": "srpf"}}, by_priority=False) == (Policy.SRPF, [])
    assert settings_of(None, False, print).serve.policy is Policy.EDF


def test_priority_scheduling_is_the_policy_where_none_is_configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert policy_of(None, by_priority=False) == (Settings().serve.policy, [])
    assert policy_of(None, by_priority=True) == (Policy.PRIORITY, [])
    assert policy_of({"serve": {"chunk_min": 64}}, by_priority=True) == (Policy.PRIORITY, [])
    (tmp_path / "serve.toml").write_text("[default]\nttft_ms = 1000")
    monkeypatch.setenv(CONFIG_FILE, str(tmp_path / "serve.toml"))
    assert policy_of(None, by_priority=True) == (Policy.PRIORITY, [])


def test_another_policy_beside_priority_scheduling_is_one_warning_with_the_remedy() -> None:
    for name in ("edf", "fit"):
        policy, (warning,) = policy_of({"serve": {"policy": name}}, by_priority=True)
        assert policy is Policy(name) and repr(name) in warning and "set policy 'priority'" in warning
    assert policy_of({"serve": {"policy": "priority"}}, by_priority=True) == (Policy.PRIORITY, [])
