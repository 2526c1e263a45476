"""Keeps errors of MFS out of vLLM's step: the inner connector and the engine go on without MFS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from mooncake_adapter.warn_once import WarnOnce

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """Makes calls into MFS. An error is logged once for each kind of call, and the caller goes on without."""

    def __init__(self, once: WarnOnce) -> None:
        self._once = once
        self.strict = False
        """Whether errors are raised to the engine: if calls move KV themselves, a request whose call failed would give
        wrong tokens."""

    def __call__(self, call: Callable[P, Any], *arguments: P.args, **keywords: P.kwargs) -> None:
        self.asked(None, call, *arguments, **keywords)

    def asked(self, without: T, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Returns the result of the call; `without` if it fails."""
        if self.strict:
            return call(*arguments, **keywords)
        try:
            return call(*arguments, **keywords)
        except Exception as error:
            name = getattr(call, "__qualname__", repr(call))
            text = "%s failed (%s: %s); its requests are not reported, the engine goes on"
            self._once.warn(f"connector {name}", text, name, type(error).__name__, error)
            return without
