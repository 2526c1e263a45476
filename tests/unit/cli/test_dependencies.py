"""What `pip install .` brings is enough: no module of mfsd/ imports a package that is not asked for."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

from pip._vendor import tomli

ROOT = Path(__file__).resolve().parents[3]
OWN = {"mfsd", "nccl_shim", "mooncake_adapter"}
EXTRA = {
    "mfsd/observe/spans.py": {"opentelemetry"},  # mfsd[otel]
    "mfsd/fabric/schema.py": {"pyavd", "nvueschema", "junoscfg"},  # mfsd[switch-check]; "not checked" without
    "mfsd/proto/generate.py": {"grpc_tools"},  # to change a message
}


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
    owners = importlib.metadata.packages_distributions()
    missing = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in sorted((ROOT / "mfsd").rglob("*.py"))
        for name in third_party(file) - EXTRA.get(str(file.relative_to(ROOT)), set())
        if name != "tomllib" and not asked & {owner.lower().replace("_", "-") for owner in owners.get(name, [name])}
    ]
    assert missing == []
