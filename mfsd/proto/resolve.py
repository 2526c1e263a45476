"""Addresses of a host's name."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
import socket
import threading


async def resolve(host: str) -> list[str]:
    """The host's addresses in random order, so that one that is dead is not the first of every attempt. OSError.

    The resolver cannot be called off, and may take half a minute where its server is out of reach. Its thread is one
    that no end of the process waits for, as the loop's own would be.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(found: list[str] | OSError) -> None:
        if answer.done():
            return  # the caller waits no more
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def resolve_here() -> None:
        found: list[str] | OSError
        try:
            rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(row[4][0]) for row in rows))
            random.shuffle(found)
        except OSError as error:
            found = error
        except UnicodeError as error:  # labels that are empty or too long
            found = OSError(f"{host!r} is no host's name: {error}")
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, found)

    threading.Thread(target=resolve_here, name="resolve", daemon=True).start()
    return await answer
