"""Stand-ins for the parts of LMCache 0.5.6 that make NIXL's agents and start their transfers, under the same names.

With them each version of NIXL is tested without torch. LMCache itself needs torch; tests/e2e/test_lmcache.py runs it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

CHANNEL = """
import asyncio

class NixlChannel:
    def __init__(self, agent_class, name, config):
        self.nixl_agent = agent_class(name, config)

    async def async_batched_write(self, *lists):
        await self._moved("WRITE", *lists)

    async def async_batched_read(self, *lists):
        await self._moved("READ", *lists)

    async def _moved(self, operation, local, remote):
        handle = self.nixl_agent.make_prepped_xfer(operation, local, [0], remote, [0])
        self.nixl_agent.transfer(handle)
        while (status := self.nixl_agent.check_xfer_state(handle)) == "PROC":
            await asyncio.sleep(0)
        assert status == "DONE", status  # and the handle is left to be collected
"""
BACKEND = """
class Backend:
    def __init__(self, channel_class, *arguments):
        self.transfer_channel = channel_class(*arguments)

    async def _handle_batched_lookup_and_get(self, lookup_id, *lists):
        await self.transfer_channel.async_batched_write(*lists)

    async def _handle_batched_lookup_and_put(self, sender_id, *lists):
        await self.transfer_channel.async_batched_read(*lists)
"""


def part(name: str, source: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
    return module


def backend(module: str, *arguments: Any) -> Any:
    """Returns a backend of this name (`p2p_backend`, `pd_backend`) whose channel has made an agent with these
    arguments."""
    channel = part("lmcache.v1.transfer_channel.nixl_channel", CHANNEL).NixlChannel
    return part(f"lmcache.v1.storage_backend.{module}", BACKEND).Backend(channel, *arguments)
