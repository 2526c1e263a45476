"""The two calls of a request that is prefilled at one instance and decoded at another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mfsd.serve.gateway import pd
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.exchange import Exchange
from mfsd.serve.gateway.ports import address
from mfsd.serve.gateway.replicas import LiveReplica

Body = Callable[[LiveReplica], dict[str, Any]]
"""Returns the body of a call for the replica that it goes to."""


class SplitRequest:
    """Makes the bodies of the two calls.

    If both instances have ports, on nodes with MFS, the decode instance is chosen when the prefill is sent, and both
    are given its NIC: the prefill instance then announces for that port what its queue will send there."""

    def __init__(self, gateway: Gateway, exchange: Exchange) -> None:
        self._gateway, self._exchange = gateway, exchange
        self._connector = gateway.settings.disaggregation.connector
        self._transfer = f"mfs-{exchange.request_id}"
        self.intended: LiveReplica | None = None
        """Decode instance; None: it is chosen when the prompt is computed."""
        self._expected = False

    def prefill(self, replica: LiveReplica) -> dict[str, Any]:
        if self.intended is None and replica.settings.port:
            self.intended = self._gateway.admission.choose_decode(self._exchange.call, self._exchange.prompt)
            self._expected = self.intended is not None
        return pd.prefill(self._exchange.body, self._connector, self._transfer, self._nic(replica))

    def decode(self, answer: dict[str, Any], prefilled: LiveReplica) -> Body:
        """Returns the body of the call that decodes. answer: that of the prefill."""

        def body(replica: LiveReplica) -> dict[str, Any]:
            self.end()
            nic = self._nic(prefilled) if replica is self.intended else ""
            return pd.decode(self._exchange.body, self._connector, self._transfer, answer, prefilled.settings, nic)

        return body

    def end(self) -> None:
        """Takes back what is expected of the decode instance: the second call has its place, or there is none."""
        if self._expected and self.intended is not None:
            self.intended.expected -= 1
        self._expected = False

    def _nic(self, prefilled: LiveReplica) -> str:
        if self.intended is None or not prefilled.settings.port:
            return ""
        return address(self.intended.settings.port)
