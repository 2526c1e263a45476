"""The build says what is missing and how to get it, before it tries anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(path: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """`before` is Python that runs in front of setup.py."""
    environment = {k: v for k, v in os.environ.items() if k != "CC"} | {"PATH": str(path)}
    script = f"import runpy\n{before}\nrunpy.run_path('setup.py', run_name='__main__')"
    command = [sys.executable, "-c", script, "build_ext", "--build-lib", str(path), "--build-temp", str(path)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_no_compiler(tmp_path: Path) -> None:
    result = build(tmp_path)
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1] == (
        "mfsd: no C compiler found; install one: apt-get install gcc (or dnf install gcc)"
    )


def test_no_verbs_headers(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'fatal error: infiniband/verbs.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    result = build(tmp_path)
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1] == (
        "mfsd: the libibverbs headers are missing (infiniband/verbs.h); install them: "
        "apt-get install libibverbs-dev (or dnf install rdma-core-devel)"
    )


def test_no_python_headers(tmp_path: Path) -> None:
    """As with a distribution's Python, whose headers are a package of their own."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexit 0\n")
    compiler.chmod(0o755)
    result = build(
        tmp_path,
        "import sysconfig\nsysconfig.get_path = lambda *_: '/nowhere'\n"
        "sysconfig.get_config_vars()['INCLUDEPY'] = '/nowhere'",
    )
    assert result.returncode != 0
    last = result.stderr.splitlines()[-1]
    assert "are missing (Python.h); install them: apt-get install python3-dev" in last and sys.executable in last
