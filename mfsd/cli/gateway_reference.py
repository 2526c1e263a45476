"""Writes the gateway's default configuration and the tables of its page from the structs that read the file.

``python -m mfsd.cli.gateway_reference docs/gateway.md`` updates the tables of that page.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from msgspec import NODEFAULT, Struct

from mfsd.node.reference import default_text
from mfsd.node.schema import Key, allowed, attribute_docs, keys, struct_of
from mfsd.serve.gateway.settings import GatewaySettings
from mfsd.serve.settings import Tier
from mfsd.text import with_part

BEGIN, END = "<!-- begin of generated tables -->", "<!-- end of generated tables -->"
EXAMPLE = """\
# Configuration of mfsd --gateway. Only replicas are required; all other values are the defaults.

[[replicas]]
url = "http://10.0.0.1:8000"

[[replicas]]
url = "http://10.0.0.2:8000"
"""


def _rows(struct: type[Struct]) -> Iterator[tuple[Key, str]]:
    docs = attribute_docs(struct)
    for key in keys(struct):
        yield key, docs.get(key.attribute) or key.description


def _tables() -> Iterator[tuple[str, type[Struct]]]:
    """Yields the tables that occur once in a file: name and struct."""
    for key in keys(GatewaySettings):
        struct = struct_of(key.type)
        if struct is not None and struct is not Tier and key.default is not NODEFAULT:
            yield key.name, struct


def _plain() -> list[tuple[Key, str]]:
    return [(key, text) for key, text in _rows(GatewaySettings) if struct_of(key.type) is None]


def default_toml() -> str:
    top = "".join(_toml_key(key, text) for key, text in _plain())
    first, _, rest = EXAMPLE.partition("\n")
    parts = [first, "\n\n", top, rest]
    for name, struct in _tables():
        parts += [f"\n[{name}]\n", *(_toml_key(key, text) for key, text in _rows(struct))]
    return "".join(parts)


def _toml_key(key: Key, text: str) -> str:
    value = "{}" if key.default == {} else default_text(key)
    about = textwrap.fill(f"{text.replace('`', '')}; {allowed(key.type, key.limits)}", 100, initial_indent="# ",
                          subsequent_indent="#   ")  # fmt: skip
    return f"{about}\n" + (f"{key.name} = {value}\n" if value else f"# {key.name} =\n")


def markdown() -> str:
    (replicas,) = [struct_of(key.type) for key in keys(GatewaySettings) if key.name == "replicas"]
    assert replicas is not None
    parts = ["### Top level\n", _table(_plain()), "\n### `[[replicas]]`\n", _table(list(_rows(replicas)))]
    for name, struct in _tables():
        parts += [f"\n### `[{name}]`\n", _table(list(_rows(struct)))]
    parts += ["\n### `[default]`, `[tiers.NAME]`\n", _table(list(_rows(Tier)))]
    return "\n".join(parts)


def _table(rows: list[tuple[Key, str]]) -> str:
    lines = ["| key | default | may be | meaning |", "|---|---|---|---|"]
    for key, text in rows:
        value = default_text(key)
        default = f"`{value}`" if value else "required" if key.default is NODEFAULT else "unset"
        lines.append(f"| `{key.name}` | {default} | {allowed(key.type, key.limits)} | {text} |")
    return "\n".join(lines) + "\n"


def updated(page: str) -> str:
    return with_part(page, BEGIN, markdown(), END)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(updated(target.read_text()))
