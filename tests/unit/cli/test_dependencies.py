"""What `pip install .` brings is enough: no module of mfsd/ imports a package that is not asked for. And the table of
docs/dependencies.md is what pyproject.toml asks for and what the sources import."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from pip._vendor import tomli

ROOT = Path(__file__).resolve().parents[3]
OWN = {"mfsd", "nccl_shim", "mooncake_adapter"}
GATEWAY = {"httptools", "starlette", "uvicorn", "aiohttp"}  # mfsd[gateway]
EXTRA = {
    "mfsd/observe/spans.py": {"opentelemetry"},  # mfsd[otel]
    "mfsd/serve/learn/train.py": {"lightgbm", "numpy", "sklearn"},  # mfsd[learn]; loaded by mfsctl learn alone
    "mfsd/serve/learn/measure.py": {"sklearn"},
    **{
        f"mfsd/serve/gateway/{name}.py": GATEWAY
        for name in ("app", "core", "errors", "front", "pages", "poll", "sleep", "turn", "upstream")
    },
    "mfsd/fabric/schema.py": {"pyavd", "nvueschema", "junoscfg"},  # mfsd[switch-check]; "not checked" without
    "mfsd/proto/generate.py": {"grpc_tools"},  # to change a message
    "mfsd/_build/parsed.py": {"pycparser"},  # when MFS is built
    "mfsd/_build/extern.py": {"pycparser"},
    "mfsd/verbs/program.py": {"pyverbs"},  # the distribution's, for the distribution's Python
}


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    """Of each module that can be imported."""
    return importlib.metadata.packages_distributions()


def third_party(file: Path) -> set[str]:
    names = set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - OWN - {"_typeshed", "typing_extensions"}


def test_every_import_is_a_dependency() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {re.split(r"[^A-Za-z0-9-]", text)[0].lower() for text in project["dependencies"]}
    owners = distributions()
    missing = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in sorted((ROOT / "mfsd").rglob("*.py"))
        for name in third_party(file) - EXTRA.get(str(file.relative_to(ROOT)), set())
        if name != "tomllib" and not asked & {owner.lower().replace("_", "-") for owner in owners.get(name, [name])}
    ]
    assert missing == []


class Row(NamedTuple):
    package: str
    by: str
    what: str
    rooms: set[str]


def table() -> list[Row]:
    page = (ROOT / "docs/dependencies.md").read_text()
    lines = page.partition("<!-- begin of table -->")[2].partition("<!-- end of table -->")[0].strip().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [Row(package, by, what, set(rooms.split(", "))) for package, by, what, rooms, _ in cells]


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", text)[0].lower() for text in requirements}


def room(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "mfsd" and len(parts) > 2 else parts[0]


def sources(*rooms: str) -> list[Path]:
    found = [ROOT / name for name in rooms]
    return [file for path in found for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]


@functools.cache
def imported() -> dict[str, set[str]]:
    """Distribution -> rooms whose modules import something of it."""
    owners = distributions()
    found: dict[str, set[str]] = {}
    for file in sources(*OWN, "bench"):
        for name in third_party(file) - {"bench"}:
            for owner in owners.get(name, [name]):
                found.setdefault(owner.lower().replace("_", "-"), set()).add(room(file))
    return found


def test_the_table_has_what_is_asked_for() -> None:
    text = tomli.loads((ROOT / "pyproject.toml").read_text())
    project = text["project"]
    wanted = {"pip": names_of(project["dependencies"])}
    wanted |= {
        f"[{e}]": names_of(project["optional-dependencies"][e])
        for e in ("bench", "learn", "ray", "otel", "gateway", "switch-check")
    }
    wanted["build"] = names_of(text["build-system"]["requires"]) - wanted["pip"]
    rows = table()
    assert {by: {row.package.lower() for row in rows if row.by == by} for by in wanted} == wanted
    assert {row.by for row in rows} == {*wanted, "distribution"}


@pytest.mark.parametrize("row", [r for r in table() if r.by not in ("distribution", "build")], ids=lambda r: r.package)
def test_a_package_is_imported_where_the_table_says(row: Row) -> None:
    if row.by == "[switch-check]" or row.package == "httptools":
        text = "".join(file.read_text() for file in sources(*row.rooms))
        assert row.package in text, "named, and loaded only where it is installed"
    else:
        assert imported()[row.package.lower()] == row.rooms


@pytest.mark.parametrize("row", [r for r in table() if r.by == "distribution"], ids=lambda r: r.package)
def test_a_program_of_the_distribution_is_used_where_the_table_says(row: Row) -> None:
    for name in re.findall(r"`([^`]+)`", row.what):
        for one in row.rooms:
            assert any(name in file.read_text() for file in sources(one)), f"{one} does not name {name}"
