"""Puts engines to sleep and wakes them by their own API.

An engine that sleeps has given up its KV and the accelerator memory of its weights, of which it has a copy in host
memory. Nothing else may be asked of it meanwhile: SGLang computes a token for each `/health`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import msgspec

from mfsd.serve.gateway.replicas import LiveReplica
from mfsd.serve.gateway.settings import Sleep, key_headers
from mfsd.serve.gateway.upstream import in_a_line

VLLM_SLEEP: Final = "/sleep?level=1&mode=wait"
"""Level 1 keeps the weights in host memory. It waits for requests that came past the gateway; the default is to abort
them."""
SGLANG_NEEDS: Final = ("enable_memory_saver", "enable_weights_cpu_backup")
"""Without the second one SGLang wakes with weights that are not its model's, and answers."""
SGLANG_INFO: Final = ("/server_info", "/get_server_info")
"""Of newer and older versions."""
MISSING: Final = {
    Sleep.VLLM: "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment",
    Sleep.SGLANG: "use a version of SGLang that has it",
}


class CannotSleep(Exception):
    """The engine did not fall asleep, or did not wake. `str()` is one line with the reason."""


class Sleeper:
    def __init__(self, session: aiohttp.ClientSession, quiet: Callable[[LiveReplica], Awaitable[None]]) -> None:
        """quiet: waits until no poll of the replica is under way."""
        self._session, self._quiet = session, quiet

    async def sleep(self, replica: LiveReplica, most_s: float) -> None:
        """Returns when the engine sleeps. CannotSleep."""
        await self._quiet(replica)
        await self._within(self._vllm_sleeps if _of_vllm(replica) else self._sglang_sleeps, replica, most_s)

    async def wake(self, replica: LiveReplica, most_s: float) -> None:
        """Returns when the engine may have requests. CannotSleep."""
        await self._within(self._vllm_wakes if _of_vllm(replica) else self._sglang_wakes, replica, most_s)

    @staticmethod
    async def _within(call: Callable[[LiveReplica], Awaitable[None]], replica: LiveReplica, most_s: float) -> None:
        try:
            await asyncio.wait_for(call(replica), most_s)
        except aiohttp.ClientError as error:
            raise CannotSleep(in_a_line(error)) from None
        except asyncio.TimeoutError:  # which is an OSError since Python 3.11
            raise CannotSleep(f"no answer within {most_s:g} s (residency.sleep_max_s)") from None
        except (OSError, ValueError) as error:
            raise CannotSleep(in_a_line(error)) from None

    async def _vllm_sleeps(self, replica: LiveReplica) -> None:
        await self._ask(replica, "POST", VLLM_SLEEP)
        if not await self._vllm_is_asleep(replica):
            raise CannotSleep("/is_sleeping denies it")

    async def _vllm_wakes(self, replica: LiveReplica) -> None:
        await self._ask(replica, "POST", "/wake_up")
        if await self._vllm_is_asleep(replica):
            raise CannotSleep("/is_sleeping says that it still sleeps")

    async def _vllm_is_asleep(self, replica: LiveReplica) -> bool:
        answer = await self._ask(replica, "GET", "/is_sleeping")
        return isinstance(answer, dict) and answer.get("is_sleeping") is True

    async def _sglang_sleeps(self, replica: LiveReplica) -> None:
        info = await self._ask(replica, "GET", *SGLANG_INFO)
        for needed in SGLANG_NEEDS:
            if not (isinstance(info, dict) and info.get(needed) is True):
                raise CannotSleep(f"its {needed} is not set: start SGLang with --{needed.replace('_', '-')}")
        await self._ask(replica, "POST", "/release_memory_occupation")

    async def _sglang_wakes(self, replica: LiveReplica) -> None:
        await self._ask(replica, "POST", "/resume_memory_occupation")

    async def _ask(self, replica: LiveReplica, method: str, *paths: str) -> Any:
        """Returns the JSON of the first of these pages that there is; None: it is empty. CannotSleep, OSError,
        aiohttp.ClientError, ValueError."""
        for path in paths:
            async with self._session.request(
                method,
                replica.url + path,
                headers={**key_headers(replica.settings), "content-type": "application/json"},
                data=b"{}" if method == "POST" else None,
            ) as answer:
                content, status = await answer.read(), answer.status
            if status == 200:
                return msgspec.json.decode(content) if content.strip() else None
            if status != 404:
                raise CannotSleep(f"{method} {path} answers {status}")
        assert replica.settings.sleep is not None
        raise CannotSleep(f"{method} {paths[0]} answers 404: {MISSING[replica.settings.sleep]}")


def _of_vllm(replica: LiveReplica) -> bool:
    return replica.settings.sleep is Sleep.VLLM
