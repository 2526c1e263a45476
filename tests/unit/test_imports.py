"""Imports point down: a room may use the rooms below it and none above (docs/internals/architecture.md)."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# room -> rooms it may import from; its own is always allowed
BELOW: dict[str, set[str]] = {
    "mfsd.text": set(),
    "mfsd.transfer": set(),
    "mfsd.children": set(),
    "mfsd._build": set(),
    "mfsd.capi": set(),
    "mfsd.verbs": set(),
    "mfsd.policy": {"mfsd._native"},
    "mfsd.proto": set(),
    "mfsd.soft_roce": set(),
    "mfsd.fabric": {"mfsd.policy", "mfsd.text"},
    "mfsd.observe": {"mfsd.node", "mfsd.policy", "mfsd._native", "mfsd.capi"},
    "mfsd.observe.doctor": {
        "mfsd.node",
        "mfsd.fabric",
        "mfsd.policy",
        "mfsd.proto",
        "mfsd._native",
        "mfsd.text",
        "mfsd.verbs",
        "nccl_shim",
    },
    "mfsd.client": {"mfsd._native", "mfsd.capi", "mfsd.policy", "mfsd.transfer"},
    "mfsd.playground": {"mfsd.client", "mfsd.children"},
    "mfsd.serve": {"mfsd.policy", "mfsd.proto"},
    "mfsd.node": {"mfsd.fabric", "mfsd.policy", "mfsd._native", "mfsd.proto", "mfsd.text", "mfsd.verbs"},
    "mfsd.coordinator": {"mfsd.policy", "mfsd._native", "mfsd.proto"},
    "mfsd.cli": {
        "mfsd.soft_roce",
        "nccl_shim",
        "mfsd.node",
        "mfsd.coordinator",
        "mfsd.fabric",
        "mfsd.observe",
        "mfsd.observe.doctor",
        "mfsd.playground",
        "mfsd.policy",
        "mfsd.proto",
        "mfsd.serve",
        "mfsd.text",
    },
    "nccl_shim": {"mfsd.fabric", "mfsd.node", "mfsd.policy"},
    "mooncake_adapter": {"mfsd._native", "mfsd.client", "mfsd.policy", "mfsd.serve", "mfsd.transfer"},
    "bench": {
        "mooncake_adapter",
        "mfsd.policy",
        "mfsd._native",
        "mfsd.node",
        "mfsd.client",
        "mfsd.coordinator",
        "mfsd.proto",
        "mfsd.fabric",
        "mfsd.playground",
        "mfsd.serve",
        "mfsd.soft_roce",
        "mfsd.text",
        "mfsd.children",
        "mfsd.transfer",
        "mfsd.capi",
        "mfsd.cli",
    },
}


def room_of(module: str) -> str | None:
    return max((room for room in BELOW if module == room or module.startswith(room + ".")), key=len, default=None)


def modules() -> list[tuple[str, Path]]:
    packages = ("mfsd", "nccl_shim", "mooncake_adapter", "bench")
    paths = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    return [(".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), p) for p in paths]


@functools.cache
def imports_of(module: str, path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
            base = package[: len(package) - node.level + 1] if node.level else []
            names |= {".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names}
    return names


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_down(module: str, path: Path) -> None:
    room = room_of(module)
    if room is None:  # the package's own __init__
        assert not {n for n in imports_of(module, path) if n.split(".")[0] in {"mfsd", "nccl_shim", "bench"}}
        return
    for name in imports_of(module, path):
        if name.split(".")[0] not in {"mfsd", "nccl_shim", "mooncake_adapter", "bench"}:
            continue
        target = room_of(name) or ".".join(name.split(".")[:2])
        assert target == room or target in BELOW[room], f"{module} imports {name}: {room} may not use {target}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside of functions and for types alone count, too."""
    paths = dict(modules())
    left = {module: {owner_of(name, paths) for name in imports_of(module, path)} for module, path in paths.items()}
    left = {module: used & paths.keys() - {module} for module, used in left.items()}
    while free := [module for module, used in left.items() if not used & left.keys()]:
        for module in free:
            del left[module]
    assert not left, f"among these modules there is a circle: {sorted(left)}"


def owner_of(name: str, paths: dict[str, Path]) -> str:
    """The module of a name that is imported."""
    while name and name not in paths:
        name = name.rpartition(".")[0]
    return name
