"""Entry point `vllm.general_plugins`: adapts Mooncake and registers the connector, in every process of vLLM."""

from __future__ import annotations

from mooncake_adapter.hook import install
from mooncake_adapter.vllm.requests import supported_version as supported_version

CONNECTOR = "MfsConnector"


def register() -> None:
    """Called by vLLM, possibly more than once in a process."""
    install()
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, "mooncake_adapter.vllm.connector", CONNECTOR)
