"""Splits a request into two calls, for prefill and decode instances, with vLLM's `kv_transfer_params`."""

from __future__ import annotations

from typing import Any, Final

from mfsd.serve.gateway.settings import Connector, ReplicaSettings

PATHS: Final = ("/v1/completions", "/v1/chat/completions")
"""Paths whose requests can be split."""
PARAMETERS: Final = "kv_transfer_params"
DECODE_NIC: Final = "decode_nic"
"""Parameter for `MfsConnector`, by which a prefill instance also announces what it will push for that port."""
_NIXL: Final[dict[str, Any]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def prefill(body: dict[str, Any], connector: Connector, transfer: str, decode_nic: str = "") -> dict[str, Any]:
    """Returns the body of a call that computes the prompt and keeps its KV for a decode instance. transfer: a name that
    no other request has. decode_nic: address of the NIC that will receive the KV; empty: not known yet."""
    parameters = dict(_NIXL)
    if connector is Connector.MOONCAKE:
        parameters = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
    one = {**body, "stream": False, "max_tokens": 1, PARAMETERS: _with_words(body, parameters, decode_nic)}
    if "max_completion_tokens" in body:
        one["max_completion_tokens"] = 1
    for word in ("stream_options", "min_tokens"):
        one.pop(word, None)
    return one


def decode(
    body: dict[str, Any],
    connector: Connector,
    transfer: str,
    answer: dict[str, Any],
    prefilled: ReplicaSettings,
    decode_nic: str = "",
) -> dict[str, Any]:
    """Returns the body of the call that decodes. answer: that of the prefill; if it names no KV (the prompt is shorter
    than a block), the whole request is computed. decode_nic: the NIC that the prefill was given; empty: it was given
    another one or none."""
    if connector is Connector.MOONCAKE:
        parameters: Any = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": transfer,
            "remote_bootstrap_addr": prefilled.bootstrap,
            "remote_engine_id": prefilled.engine_id,
        }
    else:
        parameters = answer.get(PARAMETERS)
    if not isinstance(parameters, dict):
        return {word: value for word, value in body.items() if word != PARAMETERS}
    return {**body, PARAMETERS: _with_words(body, parameters, decode_nic)}


def _with_words(body: dict[str, Any], parameters: dict[str, Any], decode_nic: str) -> dict[str, Any]:
    """Adds the parameters to the words of the body. A client's own `decode_nic` is dropped, since it cannot know it."""
    given = body.get(PARAMETERS)
    words = {**given, **parameters} if isinstance(given, dict) else dict(parameters)
    words.pop(DECODE_NIC, None)
    if isinstance(own := words.get("mfs"), dict):
        words["mfs"] = {word: value for word, value in own.items() if word != DECODE_NIC}
    return {**words, DECODE_NIC: decode_nic} if decode_nic else words
