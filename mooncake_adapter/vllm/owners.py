"""Reports, for vLLM's own Mooncake connector, which request every pointer of a transfer belongs to.

The connector sends the blocks of several requests in one call. It builds the list of pointers request by request, so
each pointer can be given its owner and layer. Blocks of a shared prefix count for the request that sends them.
"""

from __future__ import annotations

from typing import Any

from mooncake_adapter.blocks import Owned
from mooncake_adapter.metadata import Metadata, request_number
from mooncake_adapter.vllm.guard import Guard
from mooncake_adapter.vllm.layerwise import Pushes, Span
from mooncake_adapter.vllm.worker import Steps
from mooncake_adapter.warn_once import WarnOnce

BUILD, WORKER = "_build_transfer_params", "connector_worker"


def report_owners(connector: Any, steps: Steps, once: WarnOnce, pushes: Pushes | None = None) -> bool:
    """Makes the connector's worker attach owners to the pointers of its transfers, and leave out what was pushed.
    Returns False if that is not possible."""
    worker = getattr(connector, WORKER, None)
    build = getattr(worker, BUILD, None)
    if worker is None or build is None:
        once.warn(
            "mooncake-owners", "%s has no %s; requests are known by their blocks", type(connector).__name__, BUILD
        )
        return False

    guard = Guard(once)

    async def build_with_owners(ready: list[Any], *arguments: Any) -> tuple[Any, ...]:
        addresses, peer_addresses, lengths, owners = [], [], [], []
        failed: list[Any] = []
        message = None
        for one in ready:
            some, peers, sizes, errors, text = await build([one], *arguments)
            if pushes is not None:
                spans = list(map(Span, some, peers, sizes))
                rest = await pushes.rest(str(one[1].transfer_id), one[0], arguments[0], spans)
                some, peers, sizes = (list(column) for column in zip(*rest, strict=True)) if rest else ([], [], [])
            name, transfer = one[1].p_req_id, one[1].transfer_id
            unknown = Metadata(request_number(str(transfer)))
            owners += guard.asked([unknown] * len(some), owners_of, steps, name, unknown, some)
            addresses += some
            peer_addresses += peers
            lengths += sizes
            failed += errors
            message = message or text
        return Owned(addresses, owners), peer_addresses, lengths, failed, message

    setattr(worker, BUILD, build_with_owners)
    return True


def owners_of(steps: Steps, request: str, unknown: Metadata, addresses: list[Any]) -> list[Metadata]:
    """Returns the metadata of each address; `unknown` if the request is not known here."""
    metadata = steps.known(request) or unknown
    return [steps.blocks.at_layer(metadata, steps.blocks.layer_of(address)) for address in addresses]
