"""The adapters fill their protocols, under the names by which hook and entry points find them."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

import pytest

from mooncake_adapter.hook import ADAPTERS
from mooncake_adapter.mooncake import engine, store
from mooncake_adapter.nixl import agent
from mooncake_adapter.protocol import EngineAdapter, TransferAdapter
from mooncake_adapter.sglang import plugin as sglang
from mooncake_adapter.vllm import plugin as vllm
from mooncake_adapter.warn_once import WarnOnce

TRANSFERS: tuple[TransferAdapter, ...] = (engine, store)
UNINSTALLED: TransferAdapter = agent
"""NIXL's wheels are not installed here; tests/integration/test_nixl_agent.py has them."""
ENGINES: tuple[EngineAdapter, ...] = (vllm, sglang)


def test_the_hook_knows_every_transfer_adapter_and_its_class() -> None:
    found = {library: importlib.import_module(name) for library, name in ADAPTERS.items()}
    installed = {library: adapter for library, adapter in found.items() if adapter is not UNINSTALLED}
    assert list(installed.values()) == list(TRANSFERS)
    for library, adapter in installed.items():
        assert hasattr(importlib.import_module(library), adapter.CLASS)
    assert {library for library in found if library not in installed} == {
        *("nixl_cu12._api", "nixl_cu13._api", "nixl_rocm._api", "rixl._api")
    }


@pytest.mark.parametrize("adapter", ENGINES, ids=["vllm", "sglang"])
def test_an_untested_version_is_refused_with_one_warning(
    adapter: EngineAdapter, caplog: pytest.LogCaptureFixture
) -> None:
    once = WarnOnce()
    assert not any(adapter.supported_version("99.0", once) for _ in range(3))
    (output,) = [record.getMessage() for record in caplog.records]
    assert "99.0 was not tested (tested: " in output


@pytest.mark.parametrize(
    ("group", "adapter"), [("vllm.general_plugins", vllm), ("sglang.srt.plugins", sglang)], ids=["vllm", "sglang"]
)
def test_the_entry_points_register_the_adapters(group: str, adapter: EngineAdapter) -> None:
    (entry,) = [entry for entry in entry_points(group=group) if entry.name == "mfs"]
    assert entry.load() == adapter.register
