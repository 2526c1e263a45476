"""Writes the default configuration file and the reference tables from the configuration structs.

``python -m mfsd.node.reference docs/configuration.md`` updates the tables of that page.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import NODEFAULT, Struct

from mfsd.node.config import Config, NicConfig, PolicyKeys, RuleConfig
from mfsd.node.config_file import toml_value
from mfsd.node.rules import BUILT_IN
from mfsd.node.schema import Key, Process, allowed, attribute_docs, keys, struct_of
from mfsd.node.values import FileMode, Quantity
from mfsd.text import with_part

BEGIN, END = "<!-- begin of generated tables -->", "<!-- end of generated tables -->"

_TITLES = {NicConfig: '`[nic."NAME"]`', RuleConfig: "`[[rule]]`"}
_SUMMARIES: dict[type[Struct], str] = {
    PolicyKeys: "Who goes first. The same parameters serve the coordinator and the simulator."
}
_EXAMPLES = {
    "nic": '[nic."mlx5_0"]\nrate = "400gbit"\n',
    "rule": '[[rule]]\nprocess = "mooncake_client"\naction = "hold"\nstage = "reuse"\nset_role = "kv"\n',
}


def default_toml() -> str:
    """The default configuration with every key explained. Keys without a default are commented out."""
    parts = ["# Configuration of mfsd. Every key is optional; what is shown is the default.\n"]
    parts += [_toml_key(key) for key in keys(Config) if struct_of(key.type) is None]
    for key in keys(Config):
        struct = struct_of(key.type)
        if struct is None:
            continue
        lines = [f"\n# {_summary(struct)}\n"]
        if key.name in _EXAMPLES:
            lines += [
                _commented(f"{k.name}: {_plain(k.description)}; {allowed(k.type, k.limits)}") for k in keys(struct)
            ]
            lines += ["#\n", textwrap.indent(_EXAMPLES[key.name], "# ")]
        else:
            lines += [f"[{key.name}]\n", *map(_toml_key, _documented(struct))]
        parts += lines
    return "".join(parts)


def markdown() -> str:
    """The reference tables of ``docs/configuration.md``."""
    parts = ["### Top level\n", _table([k for k in keys(Config) if struct_of(k.type) is None])]
    for key in keys(Config):
        struct = struct_of(key.type)
        if struct is not None:
            title = _TITLES.get(struct, f"`[{key.name}]`")
            parts += [f"\n### {title}\n", f"{_docstring(struct)} {_reloads(key)}\n", _table(_documented(struct))]
    parts += ["\n### Built-in rules\n", _rules_table()]
    return "\n".join(parts)


def updated(page: str) -> str:
    """The page with new tables between its two marks."""
    return with_part(page, BEGIN, markdown(), END)


class KeyText(NamedTuple):
    """What the pages say about a key."""

    name: str
    may_be: str
    default: str
    required: bool
    meaning: str


class Section(NamedTuple):
    title: str
    summary: str
    keys: list[KeyText]


def sections() -> Iterator[Section]:
    """Everything that can be configured, for pages that are not Markdown."""
    yield Section("Top level", "Keys before any table.", _texts([k for k in keys(Config) if struct_of(k.type) is None]))
    for key in keys(Config):
        struct = struct_of(key.type)
        if struct is not None:
            title = _plain(_TITLES.get(struct, f"[{key.name}]")).strip('"')
            yield Section(title, _plain(f"{_docstring(struct)} {_reloads(key)}"), _texts(_documented(struct)))


_RELOADS: dict[tuple[Process, ...], str] = {
    ("daemon",): "`mfsctl reload` takes changes over",
    ("coordinator",): "A coordinator takes changes over when it gets SIGHUP; a daemon needs a restart",
    (): "A change needs a restart",
}


def _reloads(table: Key) -> str:
    """Says whether changes of a table's keys need a restart, and for which keys that differs."""
    struct = struct_of(table.type)
    assert struct is not None
    usual = table.reload or ()
    others = [f"`{key.name}`" for key in keys(struct) if key.reload is not None and key.reload != usual]
    listed = " and ".join(filter(None, (", ".join(others[:-1]), *others[-1:])))
    exception = f"{', but not' if usual else ', but'} of {listed}" if others else ""
    return f"{_RELOADS[usual]}{exception}."


def _texts(rows: list[Key]) -> list[KeyText]:
    return [
        KeyText(k.name, allowed(k.type, k.limits), default_text(k), k.default is NODEFAULT, _plain(k.description))
        for k in rows
    ]


def default_text(key: Key) -> str:
    """The default of a key as TOML; empty for a key that is unset or required."""
    if key.default is NODEFAULT or key.default is None:
        return ""
    if isinstance(key.default, (Quantity, FileMode)):
        return toml_value(str(key.default))
    if isinstance(key.default, Enum):
        return toml_value(key.default.value)
    return toml_value(key.default)


def _toml_key(key: Key) -> str:
    value = default_text(key)
    text = _commented(f"{_plain(key.description)}; {allowed(key.type, key.limits)}")
    return text + (f"{key.name} = {value}\n" if value else f"# {key.name} =\n")


def _table(rows: list[Key]) -> str:
    lines = ["| key | default | may be | meaning |", "|---|---|---|---|"]
    for key in rows:
        default = f"`{default_text(key)}`" if default_text(key) else "required" if key.default is NODEFAULT else "unset"
        lines.append(f"| `{key.name}` | {default} | {allowed(key.type, key.limits)} | {key.description} |")
    return "\n".join(lines) + "\n"


def _rules_table() -> str:
    lines = ["| library | role | action | stage | recorded role |", "|---|---|---|---|---|"]
    for rule in BUILT_IN:
        kept = "as found" if rule.set_role == "any" else rule.set_role
        lines.append(f"| {rule.library or 'any'} | {rule.role} | {rule.action} | {rule.stage} | {kept} |")
    return "\n".join(lines) + "\n"


def _documented(struct: type[Struct]) -> list[Key]:
    """The keys of a struct. Descriptions that its annotations lack are taken from its source."""
    docs = attribute_docs(struct)
    return [
        key if key.description else msgspec.structs.replace(key, description=docs[key.attribute])
        for key in keys(struct)
    ]


def _docstring(struct: type[Struct]) -> str:
    return _SUMMARIES.get(struct) or " ".join((struct.__doc__ or "").split())


def _summary(struct: type[Struct]) -> str:
    return _docstring(struct).partition(". ")[0].removesuffix(".") + "."


def _plain(markdown_text: str) -> str:
    return markdown_text.replace("`", '"')


def _commented(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="# ", subsequent_indent="#   ") + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(updated(target.read_text()))
