"""MFS_SERVICE_LEVELS: the InfiniBand service level for the class of each DSCP, such as `46:5,34:4`.

The preloaded library (nccl_shim/src/service_level.c) and NIXL's lanes read it. A `!` after an entry lets the preloaded
library replace a level that the program has chosen.
"""

from __future__ import annotations

from typing import Final

SERVICE_LEVELS: Final = "MFS_SERVICE_LEVELS"
DSCP_MAX, LEVEL_MAX = 63, 15


def parse_levels(text: str) -> dict[int, int]:
    """Returns DSCP -> level. Raises ValueError with a one-line message."""
    return dict(_entry(part) for part in text.removesuffix(",").split(",")) if text else {}


def _entry(part: str) -> tuple[int, int]:
    dscp, _, level = part.removesuffix("!").partition(":")
    if all(one.isascii() and one.isdigit() and len(one) <= 2 for one in (dscp, level)):
        found = int(dscp), int(level)
        if found[0] <= DSCP_MAX and found[1] <= LEVEL_MAX:
            return found
    raise ValueError(f"{SERVICE_LEVELS}: {part[:40]!r} is not DSCP:LEVEL; write entries with commas, as 46:5,34:4")
