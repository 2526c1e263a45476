"""Entry point `vllm.general_plugins`."""

from mooncake_adapter.vllm.plugin import register as register
