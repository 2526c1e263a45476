"""Entry point `sglang.srt.plugins`."""

from mooncake_adapter.sglang.plugin import register as register
