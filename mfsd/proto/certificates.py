"""Certificates that are renewed while their holder runs: files are read again when they have changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mfsd.proto.wire import TlsError, TlsFiles, read_pem

if TYPE_CHECKING:
    import ssl

    import grpc


class Logger(Protocol):
    def info(self, event: str, **values: object) -> None: ...
    def warning(self, event: str, **values: object) -> None: ...


class Pem(NamedTuple):
    ca: bytes
    certificate: bytes
    key: bytes


class Certificates:
    """What one end of a connection shows and trusts.

    The three files are replaced one after the other. While they do not match, or cannot be used, the last good ones
    hold. The check takes three stat calls, so it is made at every handshake.
    """

    def __init__(self, files: TlsFiles, log: Logger) -> None:
        """Raises TlsError if the files cannot be used."""
        self._files = files
        self._log = log
        self._stamp = self._file_stamps()
        self._pem = Pem(*read_pem(files))
        self._refused: object = None

    def current(self) -> Pem:
        """Returns the same object as before unless the files have changed."""
        stamp = self._file_stamps()
        if stamp != self._stamp and stamp != self._refused:
            try:
                pem = Pem(*read_pem(self._files))
            except TlsError as error:
                self._refused = stamp
                self._log.warning("certificates-unusable", problem=error, remedy="the old ones stay in use")
            else:
                self._stamp, self._refused = stamp, None
                if pem != self._pem:
                    self._pem = pem
                    self._log.info("certificates-renewed", certificate=self._files.certificate)
        return self._pem

    def _file_stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        found: list[tuple[int, int, int] | None] = []
        for path in (self._files.ca, self._files.certificate, self._files.key):
            if path is None:
                continue
            try:
                seen = path.stat()
            except OSError:
                found.append(None)
            else:
                found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
        return tuple(found)


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Returns the credentials of a server that admits only clients whose certificate the CA has signed, as the files
    are at each handshake. Without a CA it admits all."""
    import grpc

    def configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], root_certificates=pem.ca or None)

    shown = certificates.current()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC at every handshake, from a thread of its own; None: unchanged."""
        nonlocal shown
        now = certificates.current()
        if now is shown:
            return None
        shown = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        configuration(shown),
        renewed,  # type: ignore[arg-type]  # the stubs do not know that None is allowed
        require_client_authentication=bool(shown.ca),
    )


def client_credentials(pem: Pem) -> grpc.ChannelCredentials:
    """Returns the credentials of a client that shows its certificate and checks the server's."""
    import grpc

    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)


def client_context(pem: Pem) -> ssl.SSLContext:
    """The same for a connection of asyncio, which speaks HTTP/2."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # `ca` may be an authority that another one has signed
    with _file(pem.ca) as ca, _file(pem.certificate) as certificate, _file(pem.key) as key:
        context.load_verify_locations(cafile=ca)
        context.load_cert_chain(certificate, key)
    return context


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Yields a file name for content in memory: OpenSSL takes files, and those on disk may have been replaced by
    now."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
