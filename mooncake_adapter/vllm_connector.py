"""Import path of the connector for `kv_connector_module_path`."""

from mooncake_adapter.vllm.connector import MfsConnector as MfsConnector
