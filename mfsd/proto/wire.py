"""Names, versions and limits of the protocol in ``mfs.proto``, and the certificates of a connection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import grpc

SERVICE = "mfs.v1.Coordinator"
LINK = f"/{SERVICE}/Link"
STATUS = f"/{SERVICE}/Status"
ASK = f"/{SERVICE}/Ask"

PROTOCOL = 1
"""Raised when an old field changes its meaning, but not when fields are added."""
PROTOCOL_OLDEST = 1
"""The oldest version that this code still speaks."""

MESSAGE_BYTES_MAX = 16 << 20
"""A larger message ends the stream. Reports are split far below it."""
REQUESTS_PER_BATCH_MAX = 16_384
"""A batch with more requests is refused: no unit runs so many together, and one such batch would delay the order of all
others."""
BATCHES_PER_NODE_MAX = 4_096
REQUESTS_PER_NODE_MAX = 65_536
DEMANDS_PER_NODE_MAX = 1_048_576
WAITING_PER_NODE_MAX = 16_384
"""Limits of what one daemon may have in the order at a time (demands: entries of port and bytes). Beyond them its
batches are refused, so that a faulty daemon does not take the memory or the time of the others."""
BATCHES_PER_CLUSTER_MAX = 65_536
NAME_LENGTH_MAX = 300
"""Limit of the name of a node, a unit or a port, in printable characters: names are kept, logged and shown."""
DEMANDS_PER_REPORT_MAX = 16_384
"""Where a daemon splits a report: about 128 KiB."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The link is slow and lasts for days: probing its bandwidth after each message would cost more than the message.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.enable_http_proxy", 0),  # a control plane inside the cluster: never through a web proxy
    ("grpc.use_local_subchannel_pool", 1),  # a channel that is made anew gets a connection of its own
)


class TlsFiles(Struct, frozen=True, kw_only=True):
    """PEM files of one end of a connection. Both ends are authenticated unless a server has no `ca`."""

    ca: Path | None
    """The authority that must have signed the other end's certificate. None, on a server: clients show no
    certificate."""
    certificate: Path
    key: Path
    server_name: str = ""
    """Name that a server's certificate must carry; empty: the address of the connection."""


class TlsError(Exception):
    """A certificate or key that cannot be used; ``str()`` names the file and the remedy."""


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Returns the credentials of a client that shows its certificate and checks the server's. Raises TlsError."""
    import grpc

    ca, certificate, key = read_pem(files)
    return grpc.ssl_channel_credentials(ca, key, certificate)


def channel_options(files: TlsFiles | None) -> tuple[tuple[str, int | str], ...]:
    if files is None or not files.server_name:
        return CHANNEL_OPTIONS
    return (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", files.server_name))


def read_pem(files: TlsFiles) -> tuple[bytes, bytes, bytes]:
    """Returns CA (empty if there is none), certificate and key. Checks them here, because gRPC would later report only
    "handshake failed". Raises TlsError."""
    import ssl

    problems = []
    for name, path in (("ca", files.ca), ("certificate", files.certificate), ("key", files.key)):
        if path is None:
            continue
        try:
            path.read_bytes()
        except OSError as error:
            problems.append(f"{name} {path} cannot be read: {error.strerror}")
    if problems:
        raise TlsError(f"{', '.join(problems)}; name a PEM file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        problem = getattr(error, "reason", None) or error
        raise TlsError(
            f"certificate {files.certificate} and key {files.key} do not fit together or are not PEM ({problem}); "
            "the key must be the certificate's own and not encrypted"
        ) from error
    if files.ca is None:
        return b"", files.certificate.read_bytes(), files.key.read_bytes()
    try:
        context.load_verify_locations(cafile=str(files.ca))
    except ssl.SSLError as error:
        raise TlsError(f"ca {files.ca} holds no PEM certificate ({error.reason})") from error
    return files.ca.read_bytes(), files.certificate.read_bytes(), files.key.read_bytes()


def is_name(text: str) -> bool:
    """Whether the text may be the name of a node, a unit or a port. It may be empty."""
    return len(text) <= NAME_LENGTH_MAX and text.isprintable()


def address_problem(text: str) -> str | None:
    """Returns why `text` is not HOST:PORT; None if it is."""
    if "://" in text:
        return "it is a URL: leave out the scheme"
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        return "host or port is missing"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "an IPv6 address goes into brackets"
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        return f"the port is a number from 0 to 65535, not {port!r}"
    return None
