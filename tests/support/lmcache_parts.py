"""Stand-ins for the parts of LMCache 0.5.6 that make NIXL's agents and start their transfers, under their own names."""

from __future__ import annotations

from types import ModuleType
from typing import Any

CHANNEL = """
import asyncio

class NixlChannel:
    def __init__(self, agent_class, name, config):
        self.nixl_agent = agent_class(name, config)

    async def async_batched(self, operation, local, remote, peer):
        handle = self.nixl_agent.initialize_xfer(operation, local, remote, peer)
        self.nixl_agent.transfer(handle)
        while (status := self.nixl_agent.check_xfer_state(handle)) == "PROC":
            await asyncio.sleep(0)
        assert status == "DONE", status
        self.nixl_agent.release_xfer_handle(handle)
"""
BACKEND = """
class Backend:
    def __init__(self, channel_class, *arguments):
        self.transfer_channel = channel_class(*arguments)

    async def _handle_batched_lookup_and_get(self, lookup_id, *lists):
        await self.transfer_channel.async_batched("WRITE", *lists)

    async def _handle_batched_lookup_and_put(self, sender_id, *lists):
        await self.transfer_channel.async_batched("READ", *lists)
"""


def part(name: str, source: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
    return module


def backend(module: str, *arguments: Any) -> Any:
    """A backend of this name (`p2p_backend`, `pd_backend`) whose channel has made an agent with these arguments."""
    channel = part("lmcache.v1.transfer_channel.nixl_channel", CHANNEL).NixlChannel
    return part(f"lmcache.v1.storage_backend.{module}", BACKEND).Backend(channel, *arguments)
