"""`make rdma-vm`: boots a kernel with Soft-RoCE and runs guest.py in it, with NCCL's transport if its wheel can be had.

Two to five minutes, mostly the emulated processor starting Python.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.under_mfs import build_program  # noqa: E402
from tests.support.wheels import NCCL_VERSIONS, nccl_net_arguments  # noqa: E402


def nccl_command() -> list[str]:
    """NCCL's test program, built here, with the wheel that the ordinary tests use, downloaded if need be."""
    folder = ROOT / "build/rdma-vm"
    folder.mkdir(parents=True, exist_ok=True)
    program = build_program("nccl_net", folder, "-ldl", source_folder="tests/native")
    return [str(program), *nccl_net_arguments(NCCL_VERSIONS[0])]


def main() -> int:
    if platform.machine() != "x86_64":
        print("rdma-vm: the machine is emulated as x86-64 and runs this host's programs: needs an x86-64 host")
        return 1
    try:
        nccl = nccl_command()
    except (OSError, subprocess.CalledProcessError, LookupError) as error:
        print(f"rdma-vm: without NCCL: {error}")
        nccl = []
    return subprocess.run([str(HERE / "boot"), sys.executable, str(HERE / "guest.py"), *nccl], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
