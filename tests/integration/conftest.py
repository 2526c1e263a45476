"""Fixtures of the integration tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a short path (socket paths are short) that other users can enter."""
    path = Path(tempfile.mkdtemp(prefix="mfs-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
