"""A background task of the daemon that ends with an error is logged at once, and one that is cancelled is not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mfsd.node.daemon import Daemon


@pytest.mark.parametrize(("fails", "logged"), [(True, 1), (False, 0)])
def test_an_error_of_a_background_task_is_logged(fails: bool, logged: int) -> None:
    lines: list[dict[str, object]] = []
    daemon = cast(Any, SimpleNamespace(_log=SimpleNamespace(error=lambda event, **words: lines.append(words))))

    async def reads() -> None:
        if fails:
            raise KeyError("mlx5_0")
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(reads())
        task.add_done_callback(lambda ended: Daemon._background_ended(daemon, ended))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(0)

    asyncio.run(main())
    assert len(lines) == logged
    if fails:
        assert "reads" in str(lines[0]["task"]) and "mlx5_0" in str(lines[0]["problem"])
