"""Relays connections into the sandbox: from a listening socket to an address, in both directions.

A network namespace cannot be reached from outside, but a unix socket in a folder that both sides see can. So one relay
listens on this machine's loopback and connects to such sockets. A second one in the sandbox listens on these sockets
and connects to the addresses.

    python -m mfsd.playground.relay FD TARGET [FD TARGET ...]     TARGET: a socket's path, or HOST:PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys

from mfsd.playground.sandbox import die_with_parent

CHUNK_BYTES = 65_536


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _serve(listener: socket.socket, target: str) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                if target.startswith("/"):
                    there_reader, there_writer = await asyncio.open_unix_connection(target)
                else:
                    host, _, port = target.rpartition(":")
                    there_reader, there_writer = await asyncio.open_connection(host, int(port))
            except OSError:
                return  # nothing listens there now: this closes the caller's connection
            with contextlib.closing(there_writer):
                await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))

    if listener.family == socket.AF_UNIX:
        server = await asyncio.start_unix_server(connected, sock=listener)
    else:
        server = await asyncio.start_server(connected, sock=listener)
    async with server:
        await server.serve_forever()


async def _all(pairs: list[tuple[socket.socket, str]]) -> None:
    await asyncio.gather(*(_serve(listener, target) for listener, target in pairs))


def main(arguments: list[str]) -> None:
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    numbers, targets = arguments[::2], arguments[1::2]
    asyncio.run(_all([(socket.socket(fileno=int(n)), t) for n, t in zip(numbers, targets, strict=True)]))


if __name__ == "__main__":
    main(sys.argv[1:])
