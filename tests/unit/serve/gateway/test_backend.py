"""The process of an engine, and what it has started."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mfsd.serve.gateway.backend import Backend

MEMORY_BYTES = 256 << 20
"""Of a worker: what the kernel takes back when it is killed, which is not done at once."""
ENGINE = f"""
import os, signal, sys
asks, tells = os.pipe()
worker = os.fork()
if not worker:
    memory = bytearray(b"x") * {MEMORY_BYTES}
    os.write(tells, b"x")
    signal.pause()
os.read(asks, 1)
with open(sys.argv[1], "w") as file:
    file.write(str(worker))
os._exit(3)
"""


def test_an_engine_is_gone_when_nothing_is_left_of_its_workers(tmp_path: Path) -> None:
    file = tmp_path / "worker"

    async def main() -> None:
        backend = Backend([sys.executable, "-c", ENGINE, str(file)])
        assert await backend.run() == "exited with status 3"
        await backend.gone()

    asyncio.run(main())
    assert not lives(int(file.read_text()))


def lives(process: int) -> bool:
    """It is not there, or has only not been waited for."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False
