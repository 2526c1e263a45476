"""Real coordinators, a real etcd, certificates, and links of daemons, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import inspect
import ipaddress
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from bench.ports import free_port
from mfsd.node.link import Link
from mfsd.node.link_interface import BatchSummary, Identity, LinkSettings, OrderChange, PortDemand, RequestSummary
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.wire import STATUS, TlsFiles, channel_credentials, channel_options
from tests.support.daemon import Logged
from tests.support.debian import program
from tests.support.waiting import TIMEOUT_S, eventually

TAKEOVER_S = 3.0
"""Promised time from the death of the leader to the first order of the next one."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turns an asynchronous test into an ordinary one with the same fixtures."""

    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]  # where pytest looks for fixtures
    return run


class Process(Logged):
    """A program whose standard error is collected line by line. Leaving the context kills it."""

    def __init__(self, *command: str | Path) -> None:
        self.process = subprocess.Popen([str(c) for c in command], stderr=subprocess.PIPE, text=True)
        self._collect()

    def __enter__(self):
        return self

    def __exit__(self, kind: object, error: object, _trace: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        if error is not None:
            print(f"output of {self.process.args!r}:", *self.lines[-60:], sep="\n  ")


class Coordinator(Process):
    """``mfsd --coordinator`` on a free port of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        etcd: str = "",
        config: str = "",
        port: int = 0,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.address = f"{host}:{self.port}"
        self.config_file = folder / f"coordinator-{host}-{self.port}.toml"
        self.config_file.write_text(config)
        super().__init__(
            *prefix,
            *(sys.executable, "-m", "mfsd.cli.daemon", "--coordinator", "--config", str(self.config_file)),
            *("--listen", self.address, "--advertise", self.address),
            *(("--etcd", etcd) if etcd else ()),
        )

    def __enter__(self) -> Coordinator:
        self.wait_line("event=ready")
        return self

    def status(self, tls: TlsFiles | None = None) -> pb.StatusReply:
        """Returns the status. Retries, because gRPC may give up a slow connection to a coordinator that runs."""

        def asked() -> pb.StatusReply | None:
            try:
                return ask_status(self.address, tls)
            except grpc.RpcError as error:
                if "timed out before receiving SETTINGS" in str(error) and self.process.poll() is None:
                    return None
                raise

        return eventually(asked, "an answer")

    def wait_lead(self) -> int:
        """Waits until the coordinator leads, and returns its term."""
        self.wait_line("event=leads")
        return int(eventually(lambda: self.status().leads and self.status().term, "the lead"))


def ask_status(address: str, tls: TlsFiles | None = None) -> pb.StatusReply:
    options = channel_options(tls)
    channel = (
        grpc.secure_channel(address, channel_credentials(tls), options)
        if tls
        else grpc.insecure_channel(address, options)
    )
    with channel:
        call = channel.unary_unary(
            STATUS,
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.StatusReply.FromString,
        )
        return call(pb.StatusRequest(), timeout=TIMEOUT_S, wait_for_ready=False)


@contextlib.contextmanager
def etcd(folder: Path, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Iterator[tuple[str, Process]]:
    """Runs a real etcd with its defaults; yields its client address and its process."""
    client_port, peer_port = free_port(), free_port()
    client, peer = f"http://{host}:{client_port}", f"http://127.0.0.1:{peer_port}"
    with Process(
        *prefix,
        *(program("etcd-server", "etcd"), "--name=t", f"--data-dir={folder}/etcd", "--logger=zap"),
        *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
        *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=t={peer}"),
    ) as server:
        server.wait_line("serving client traffic")
        yield client.removeprefix("http://"), server


class Recorder:
    """A daemon's listener, which records the changes that it gets and the current order."""

    def __init__(self) -> None:
        self.changes: list[OrderChange] = []
        self.ranks: dict[int, int] = {}
        self.pruned: set[int] = set()
        self.lost = 0
        self.order_at_s: list[tuple[int, float]] = []

    def order(self, change: OrderChange) -> None:
        self.changes.append(change)
        self.order_at_s.append((change.term, time.monotonic()))
        if change.complete:
            self.ranks, self.pruned = {}, set()
        self.ranks.update(change.ranks)
        self.pruned |= set(change.pruned_added)
        self.pruned -= set(change.pruned_removed)

    def order_lost(self) -> None:
        self.lost += 1
        self.ranks, self.pruned = {}, set()

    def batches(self) -> list[int]:
        return sorted(self.ranks, key=self.ranks.__getitem__)


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **values: object) -> None:
        self.lines.append((event, values))

    warning = error = debug = info

    def events(self, name: str) -> list[dict[str, object]]:
        return [values for event, values in self.lines if event == name]


class Node:
    """A daemon's link on the test's loop."""

    def __init__(self, name: str, *addresses: str, ttl_s: float = 30.0, tls: TlsFiles | None = None) -> None:
        self.received = Recorder()
        self.log = Lines()
        settings = LinkSettings(addresses=addresses, ttl_ns=int(ttl_s * 1e9), tls=tls, backoff_max_s=0.3)
        ports = {f"{name}/in": 10**9, f"{name}/out": 10**9}
        self.link = Link(settings, Identity(name, "test", 1), ports, self.received, self.log)
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Node:
        self.task = asyncio.create_task(self.link.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def arrive(
        self, batch_id: int, budget_s: float, *, port: str = "x/in", size: int = 1000, requests: int = 1
    ) -> None:
        self.link.arrived(batch(batch_id, budget_s, port=port, size=size, requests=requests))


def batch(batch_id: int, budget_s: float, *, port: str = "x/in", size: int = 1000, requests: int = 1) -> BatchSummary:
    return BatchSummary(
        batch_id,
        "unit",
        0,
        tuple(
            RequestSummary(batch_id * 1000 + i, int(budget_s * 1e9), (PortDemand(port, size),)) for i in range(requests)
        ),
    )


async def until(poll: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Waits for a condition that other tasks of this loop make true."""
    deadline_s = time.monotonic() + timeout_s
    while not poll():
        assert time.monotonic() < deadline_s, f"{what} did not come true within {timeout_s:g} s"
        await asyncio.sleep(0.002)


class Authority:
    """A certificate authority for one test."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._ca = self._sign(self._subject, self._key.public_key(), None)
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(self._pem(self._ca))

    def issue(self, name: str, *hosts: str) -> TlsFiles:
        """Issues a certificate for these hosts or addresses; returns all files that its holder needs."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._folder / f"{self._name}-{name}.pem"
        certificate.write_bytes(self._pem(self._sign(subject, key.public_key(), hosts or ("127.0.0.1",))))
        key_file = self._folder / f"{self._name}-{name}.key"
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        key_file.chmod(0o600)
        return TlsFiles(ca=self.ca, certificate=certificate, key=key_file)

    def _pem(self, certificate) -> bytes:
        from cryptography.hazmat.primitives import serialization

        return certificate.public_bytes(serialization.Encoding.PEM)

    def _sign(self, subject, public_key, hosts: Sequence[str] | None):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
        )
        if hosts is not None:
            names: list[x509.GeneralName] = []
            for host in hosts:
                try:
                    names.append(x509.IPAddress(ipaddress.ip_address(host)))
                except ValueError:
                    names.append(x509.DNSName(host))
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())
