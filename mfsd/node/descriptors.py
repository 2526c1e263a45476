"""The limit on files and sockets that a process may have open."""

from __future__ import annotations

import contextlib
import resource


def raise_limit(wanted: int) -> None:
    """Raises the soft limit, usually 1,024, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
