"""The configuration in force, key by key, with the source of each value."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct

from mfsd.node.config import Config, Mode
from mfsd.node.config_file import toml_value
from mfsd.node.control import ConfigReply, ConfigValue
from mfsd.node.options import Options
from mfsd.node.schema import keys
from mfsd.text import parse_toml

_OPTIONS = {
    "socket.path": "socket",
    "mode": "mode",
    "cluster.coordinators": "coordinators",
    "metrics.listen": "metrics_listen",
    "coordinator.listen": "listen",
    "coordinator.advertise": "advertise",
    "coordinator.etcd": "etcd",
}
"""Keys that an option of the command line overrides."""


def effective(config: Config, options: Options, mode: Mode | None = None) -> ConfigReply:
    """`mode`: the daemon's present mode; None: no daemon runs."""
    raw = _raw(options.config_file)
    file = str(options.config_file) if options.config_file is not None else ""
    found = list(_values(config, raw, file, options, ""))
    if mode is not None and mode != config.mode:
        switched = ConfigValue("mode", toml_value(mode), "mfsctl mode")
        found = [switched if value.key == "mode" else value for value in found]
    return ConfigReply(file or None, found)


def _raw(file: Path | None) -> dict[str, Any]:
    """What the file contains now; empty if it cannot be read any more."""
    if file is None:
        return {}
    try:
        return parse_toml(file.read_bytes().decode())
    except (OSError, ValueError):
        return {}


def _values(struct: Struct, raw: Any, file: str, options: Options, prefix: str) -> Iterator[ConfigValue]:
    for key in keys(type(struct)):
        value, name = getattr(struct, key.attribute), f"{prefix}{key.name}"
        given = raw.get(key.name) if isinstance(raw, dict) else None
        if isinstance(value, Struct):
            yield from _values(value, given or {}, file, options, f"{name}.")
        elif isinstance(value, dict):
            for entry, table in value.items():
                yield from _values(table, (given or {}).get(entry, {}), file, options, f'{name}."{entry}".')
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Struct):
            for at, entry in enumerate(value):
                one = given[at] if isinstance(given, list) and at < len(given) else {}
                yield from _values(entry, one, file, options, f"{name}[{at}].")
        else:
            option = _OPTIONS.get(name)
            source = "default"
            if option is not None and getattr(options, option) is not None:
                source = "command line"
            elif given is not None:
                source = file
            yield ConfigValue(name, _text(value), source)


def _text(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, Enum):
        return toml_value(value.value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(one) for one in value) + "]"
    if type(value) in (bool, int, float, str):
        return toml_value(value)
    return toml_value(str(value))
