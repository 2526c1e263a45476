"""The worker's gate loses no permit that another thread took out of the ring."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_permit_that_the_shim_took_is_not_lost(tmp_path: Path) -> None:
    program = tmp_path / "testbed_gate"
    command = [shutil.which("cc") or "gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{ROOT}/csrc/include", f"-I{ROOT}/bench/testbed/worker", str(ROOT / "tests/native/testbed_gate.c")]
    done = subprocess.run([*command, "-o", str(program), "-ldl", "-lpthread"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
