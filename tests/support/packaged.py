"""Computes a digest of the package's sources, by which a build need not be repeated for the same sources.

``python -m tests.support.packaged`` prints it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ("csrc", "mfsd", "nccl_shim", "mooncake_adapter", "docs/man", "setup.py", "pyproject.toml")


def listed(*words: str) -> list[bytes]:
    """Returns the names of the files that git lists, sorted, without those to be deleted."""
    command = ("git", "ls-files", "-z", "--deduplicate", *words)
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    return sorted(name for name in names if name and (ROOT / os.fsdecode(name)).exists())


def digest() -> str:
    """Returns the digest of the sources as they are now, untracked files included."""
    found = hashlib.sha256()
    for name in listed("--cached", "--others", "--exclude-standard", "--", *PACKAGED):
        found.update(name + b"\0" + (ROOT / os.fsdecode(name)).read_bytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    print(digest())
