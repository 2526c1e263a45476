"""A real Envoy in a process of its own, which asks the gateway's endpoint picker where each request is to go."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.ports import free_port
from tests.support.gateway import Front
from tests.support.waiting import eventually

PROGRAM = Path(sys.executable).with_name("envoy")
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


def configuration(
    listen: int, admin: int, picker: int, engines: Sequence[int], mode: dict[str, str], names_served: bool
) -> dict[str, Any]:
    """A proxy as the inference extension asks for: the endpoint is the picker's, the next ones where none connects.
    names_served: it says which endpoint answers by the extension's metadata, and not by Envoy's own attribute."""
    subset = _filter(
        "subset",
        "filters.http.header_to_metadata.v3.Config",
        request_rules=[
            {
                "header": "x-test-subset",
                "on_header_present": {
                    "metadata_namespace": "envoy.lb.subset_hint",
                    "key": "x-gateway-destination-endpoint-subset",
                },
                "remove": True,
            }
        ],
    )
    served = _filter(
        "served",
        "filters.http.header_to_metadata.v3.Config",
        response_rules=[
            {"header": "x-test-served", "on_header_present": {"metadata_namespace": "envoy.lb", "key": SERVED}}
        ],
    )
    route = {
        "cluster": "engines",
        "timeout": "0s",
        "retry_policy": {"retry_on": "connect-failure", "num_retries": 2},
    }
    manager = _filter(
        "envoy.filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="http",
        route_config={
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": route}],
                    "response_headers_to_add": [
                        {"header": {"key": "x-test-served", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
                    ],
                }
            ]
        },
        http_filters=[
            subset,
            _ext_proc(mode, names_served),
            *([served] if names_served else []),
            _filter("envoy.filters.http.router", "filters.http.router.v3.Router"),
        ],
    )
    policy = _filter(
        "envoy.load_balancing_policies.override_host",
        "load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"metadata": {"key": "envoy.lb", "path": [{"key": ENDPOINT}]}}],
        fallback_policy={
            "policies": [
                {
                    "typed_extension_config": _filter(
                        "envoy.load_balancing_policies.round_robin", "load_balancing_policies.round_robin.v3.RoundRobin"
                    )
                }
            ]
        },
    )
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{TYPE}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": [{"name": "in", "address": _address(listen), "filter_chains": [{"filters": [manager]}]}],
            "clusters": [
                _cluster("picker", [picker], typed_extension_protocol_options=http2),
                _cluster("engines", engines, load_balancing_policy={"policies": [{"typed_extension_config": policy}]}),
            ],
        },
    }


class EnvoyProcess(Front):
    def __init__(
        self, folder: Path, picker: int, engines: Sequence[int], mode: dict[str, str], names_served: bool
    ) -> None:
        super().__init__(free_port())
        self.admin = free_port()
        file, self.log = folder / f"envoy-{self.port}.json", folder / f"envoy-{self.port}.log"
        file.write_text(json.dumps(configuration(self.port, self.admin, picker, engines, mode, names_served)))
        command = (PROGRAM, "-c", file, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/ready", timeout=5).status == 200)
        return False


@contextlib.contextmanager
def envoy(
    folder: Path,
    picker: int,
    engines: Sequence[int],
    mode: dict[str, str] | None = None,
    names_served: bool = True,
) -> Iterator[EnvoyProcess]:
    made = EnvoyProcess(folder, picker, engines, mode or FULL, names_served)
    try:
        eventually(made.answers, "Envoy", pause_s=0.02)
        yield made
    finally:
        made.process.kill()
        made.process.wait()
