"""Cumulus Linux: objects of NVUE, as YAML. Its schema is NVUE's OpenAPI description as Pydantic models (nvueschema)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from mfsd.fabric.diff import Change, Owned, Setting, diff_trees
from mfsd.fabric.findings import INSTALL_SCHEMAS, Finding, verdict
from mfsd.fabric.system import About, SwitchSystem
from mfsd.text import one_line

NVUE_VERSION = "v5_16"


class Cumulus(SwitchSystem):
    about = About(
        "cumulus",
        "Cumulus Linux (NVUE)",
        "cumulus.yaml.j2",
        "swp[1-8]",
        "nv config patch FILE && nv config diff && nv config apply",
        port_pattern=r"swp\d+(s\d+)?",
        quirk="switch buffers are re-partitioned when the traffic pools change: apply in a maintenance window",
    )

    def check(self, text: str, models: Path | None = None) -> list[Finding]:
        return [_check_openapi(text)]

    def diff(self, rendered: str, running: str) -> list[Change]:
        return diff_trees(nvue_tree(rendered), nvue_tree(running), owned_by_mfs)


def nvue_tree(text: str) -> Any:
    """The tree under `set` of an NVUE file: a list of header/set objects, or the bare tree. ValueError, with one
    line, when it is not YAML."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(one_line(f"NVUE configuration: not YAML: {error}")) from error
    if isinstance(data, list):
        return next((entry["set"] for entry in data if isinstance(entry, dict) and "set" in entry), {})
    return data or {}


def _check_openapi(text: str) -> Finding:
    check = "NVUE OpenAPI (nvueschema)"
    try:
        models = importlib.import_module(f"nvueschema.models.{NVUE_VERSION}")
    except ImportError:
        return Finding(check, "not checked", "package nvueschema is not installed", INSTALL_SCHEMAS)
    try:
        tree = nvue_tree(text)
    except ValueError as error:
        return Finding(check, "fail", str(error), "render it again")
    problems: list[str] = []
    try:
        model = models.NvueConfig.model_validate(tree, strict=False)
    except ValueError as error:  # pydantic's ValidationError is one
        problems.append(" ".join(str(error).split())[:300])
    else:
        lost = sorted(_keys(tree) - _keys(model.model_dump(by_alias=True, exclude_unset=True)))
        problems += [f"{'/'.join(path)}: no such NVUE object" for path in lost]
    return verdict(check, problems, f"valid NVUE {NVUE_VERSION[1:].replace('_', '.')} objects and values")


def _keys(tree: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    if not isinstance(tree, dict):
        return set()
    return {p for k, v in tree.items() for p in ({(*path, str(k))} | _keys(v, (*path, str(k))))}


def owned_by_mfs(want: dict[Setting, str]) -> Owned:
    profiles = {p[:3] for p in want if p[0] == "qos"}
    ports = {p[1] for p in want if p[0] == "interface"}

    def owned(path: Setting) -> bool:
        return path[:3] in profiles or (
            path[0] == "interface" and len(path) > 2 and path[1] in ports and path[2] == "qos"
        )

    return owned


SYSTEM = Cumulus()
