"""How many files and sockets a process may have open."""

from __future__ import annotations

import contextlib
import resource


def raise_limit(wanted: int) -> None:
    """The soft limit, which is 1,024 as a rule, as far as the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
