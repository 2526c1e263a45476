"""Finds the settings of a vLLM's scheduler, and what vLLM's own --scheduling-policy means for them. No vLLM in here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from mfsd.policy.serve import Policy
from mfsd.serve.settings import Settings, read_tables, tables_in

CONFIG_FILE: Final = "MFS_SERVE_CONFIG"
CONFIG_TABLE: Final = "mfs_serve"
"""Key of vLLM's --additional-config."""


def settings_of(additional_config: Any, by_priority: bool, warn: Callable[[str, str], object]) -> Settings:
    """Reads the settings from --additional-config or from the file that MFS_SERVE_CONFIG names. by_priority: vLLM was
    started with --scheduling-policy priority, which is then the policy unless another one is configured. Raises
    SettingsError."""
    tables: Any = {}
    if isinstance(additional_config, dict) and CONFIG_TABLE in additional_config:
        tables = additional_config[CONFIG_TABLE]
        settings = read_tables(tables, f"--additional-config: {CONFIG_TABLE}")
    elif path := os.environ.get(CONFIG_FILE):
        tables = tables_in(Path(path))
        settings = read_tables(tables, path)
    else:
        settings = Settings()
    if not by_priority or not settings.enabled or settings.serve.policy is Policy.PRIORITY:
        return settings
    if "policy" not in tables.get("serve", {}):
        serve = msgspec.structs.replace(settings.serve, policy=Policy.PRIORITY)
        return msgspec.structs.replace(settings, serve=serve)
    name = settings.serve.policy.value
    warn(
        "serve-priority",
        f"policy {name!r} orders requests and not --scheduling-policy priority: use policy 'priority' for vLLM's order",
    )
    return settings
