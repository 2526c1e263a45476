"""Checks JSON instances against YANG models with `yanglint` (package libyang-tools)."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

MISSING = "yanglint is not installed"
INSTALL = "apt-get install libyang-tools"


def installed() -> bool:
    return shutil.which("yanglint") is not None


def lint(models: Path, modules: list[str], instance: dict[str, Any]) -> list[str]:
    """Returns the errors in an instance (RFC 7951 JSON) of modules in the folder `models`; empty if it is valid."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(instance))
        command = ["yanglint", "-i", "-p", str(models), "-t", "config", "-f", "json"]
        command += [str(models / f"{m}.yang") for m in modules]
        result = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=120, check=False)
    errors = [s for s in result.stderr.splitlines() if "err" in s.lower()]
    if result.returncode and not errors:
        errors = [f"yanglint exited with status {result.returncode}"]
    return errors
