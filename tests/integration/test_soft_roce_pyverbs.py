"""rdma-core's own tests, as Debian packages them, on the soft RoCE device.

Everything they skip must be in soft_roce_pyverbs_skips.txt with the reason, so that a test which was passing
cannot turn into one that is skipped unnoticed.
"""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import SoftRoce
from tests.support.daemon import Daemon
from tests.support.under_mfs import HOLD_EVERYTHING, under_mfs

PACKAGED = Path("/usr/share/doc/rdma-core/tests")
SKIPS = Path(__file__).with_name("soft_roce_pyverbs_skips.txt")
MUST_PASS = 68  # of 273; 72 or so, as some tests pick their attributes at random


def allowed_skips() -> list[re.Pattern[str]]:
    lines = [line.split("#")[0].strip() for line in SKIPS.read_text().splitlines()]
    return [re.compile(line) for line in lines if line]


@pytest.fixture
def upstream_tests(tmp_path: Path) -> Path:
    """The packaged tests are partly compressed: a copy that Python can run."""
    if not PACKAGED.is_dir():
        pytest.skip(f"{PACKAGED} is missing: this system installs packages without their documentation")
    folder = tmp_path / "tests"
    folder.mkdir()
    for file in PACKAGED.iterdir():
        if file.suffix == ".gz":
            (folder / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        else:
            shutil.copy(file, folder)
    return folder


def run_upstream(soft_roce: SoftRoce, upstream_tests: Path, prefix: list[str]) -> None:
    command = [*prefix, "/usr/bin/python3", str(upstream_tests / "run_tests.py"), "--dev", "mfs0", "-v"]
    environment = {} if prefix else {"PYTHONPATH": ""}
    output = soft_roce.run(*command, env=environment, timeout_s=200).stderr
    reasons = re.findall(r"\.\.\. skipped ['\"](.*)['\"]$", output, re.MULTILINE)
    unexpected = {reason for reason in reasons if not any(skip.fullmatch(reason) for skip in allowed_skips())}
    assert not unexpected
    passed = len(re.findall(r"\.\.\. (?:.*\n)?ok$", output, re.MULTILINE))
    assert passed >= MUST_PASS, output


def test_upstream(soft_roce: SoftRoce, upstream_tests: Path) -> None:
    run_upstream(soft_roce, upstream_tests, [])


def test_upstream_held(soft_roce: SoftRoce, upstream_tests: Path, folder: Path) -> None:
    """With shim and daemon, everything held until it is permitted."""
    with Daemon(folder, HOLD_EVERYTHING) as daemon:
        run_upstream(soft_roce, upstream_tests, under_mfs(daemon.socket))
        assert sum(c.grants for nic in daemon.status().nics for c in nic.classes) > 0
