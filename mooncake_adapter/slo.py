"""What a request was promised: TTFT objective, class of service, tenant and session, wherever the engine got them from.

The request's own fields come first (vllm_xargs, kv_transfer_params, SGLang's custom params; headers arrive there
through the middleware). Then comes the configuration: by class of service, by model, the default.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from mfsd.serve.headers import QOS_KEYS, SESSION_KEYS, TTFT_KEYS, first_given, given
from mooncake_adapter.warn_once import WarnOnce

TTFT_MS_MAX = 24 * 3600 * 1000.0


class Default(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What holds for requests that do not say."""

    ttft_slo_ms: float | None = None
    qos: str = ""


class Defaults(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table "mfs" of the connector's configuration."""

    default: Default = Default()
    models: dict[str, Default] = {}
    """By the model's name, as served or as loaded."""
    classes: dict[str, Default] = {}
    """By class of service."""


class Promise(NamedTuple):
    """What one request was promised."""

    ttft_slo_ms: float | None = None
    qos: str = ""
    tenant: str = ""
    session: str = ""

    def deadline_unix_ns(self, arrival_s: float) -> int:
        """Returns when the first token is due, on the wall clock, for a request that arrived then; 0 if nothing was
        promised."""
        return 0 if self.ttft_slo_ms is None else int(arrival_s * 1e9 + self.ttft_slo_ms * 1e6)


def monotonic_ns(unix_ns: int) -> int:
    """Converts a wall-clock time to this host's CLOCK_MONOTONIC. 0 stays 0; a time before the boot becomes 1, long
    past."""
    return 0 if unix_ns == 0 else max(1, unix_ns - time.time_ns() + time.monotonic_ns())


def ttft_ms(value: Any, once: WarnOnce) -> float | None:
    """Returns the objective in milliseconds; None, with one warning, if the value is not a valid one."""
    return objective_ms("ttft_slo_ms", value, once)


def objective_ms(word: str, value: Any, once: WarnOnce) -> float | None:
    """Like ttft_ms() for any objective of a request, by its field name."""
    if value is None:
        return None
    kind = "slo" if word == "ttft_slo_ms" else word
    try:
        number = float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):  # OverflowError: an integer too large for a float
        once.warn(kind, "%s=%r is not a number of milliseconds; the request has no deadline", word, value)
        return None
    if not math.isfinite(number) or number <= 0:
        once.warn(f"{kind}-sign", "%s=%r is not above zero; the request has no deadline", word, value)
        return None
    if number > TTFT_MS_MAX:
        text = "%s=%r is more than a day (milliseconds are meant); the request has no deadline"
        once.warn(f"{kind}-far", text, word, value)
        return None
    return number


def _text(sources: list[Mapping[str, Any]], *names: str) -> str:
    for source in sources:
        for name in names:
            if isinstance(source.get(name), str | int):
                return str(source[name])
    return ""


def promise_of(sources: Iterable[Any], defaults: Defaults, model: str, once: WarnOnce) -> Promise:
    """Reads the promise from what the request carries. Sources that are not mappings are skipped."""
    carried = given(sources)
    value = first_given(carried, *TTFT_KEYS)
    by_model = defaults.models.get(model, Default())
    qos = _text(carried, *QOS_KEYS) or by_model.qos or defaults.default.qos
    objective = ttft_ms(value, once)
    for fallback in (defaults.classes.get(qos, Default()), by_model, defaults.default):
        if objective is None and value is None:
            objective = fallback.ttft_slo_ms
    return Promise(objective, qos, _text(carried, "tenant"), _text(carried, *SESSION_KEYS))


def defaults_of(config: Any, once: WarnOnce) -> Defaults:
    """Returns the configured defaults. A configuration that cannot be read is reported with its path, and then no
    defaults hold."""
    if config is None:
        return Defaults()
    try:
        return msgspec.convert(config, Defaults)
    except msgspec.ValidationError as error:
        once.warn("defaults", 'kv_connector_extra_config["mfs"]: %s; no default objectives hold', error)
        return Defaults()
