"""Resolves a host's name to addresses."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
import socket
import threading


async def resolve(host: str) -> list[str]:
    """Returns the host's addresses in random order, so that a dead one is not the first of every attempt. Raises
    OSError.

    The resolver cannot be cancelled, and may take half a minute if its server is out of reach. It runs in a daemon
    thread, which the end of the process does not wait for; the loop's own threads would delay it.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(found: list[str] | OSError) -> None:
        if answer.done():
            return  # the caller no longer waits
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
        with contextlib.suppress(RuntimeError):  # the loop has ended in the meantime
            loop.call_soon_threadsafe(tell, found)

    threading.Thread(target=resolve_here, name="resolve", daemon=True).start()
    return await answer
