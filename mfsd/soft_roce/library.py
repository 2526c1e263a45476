"""Checks that the provider exists and that this host's libibverbs can load it."""

from __future__ import annotations

import ctypes
from pathlib import Path

PROVIDER = Path(__file__).with_name("libmfs-rdmav34.so")
SUPPORTED = "rdma-core 36 to 56 (Debian 12 and 13, Ubuntu 22.04 and 24.04)"


class LibraryError(Exception):
    """The provider or libibverbs cannot be used. The message says why and what to do."""


def provider_prefix() -> str:
    """Returns the value of RDMAV_DRIVERS, to which libibverbs appends the suffix of its ABI. LibraryError."""
    if not PROVIDER.is_file():
        raise LibraryError(f"{PROVIDER} is missing: the native parts were not built; run: pip install .")
    try:
        library = ctypes.CDLL("libibverbs.so.1")
    except OSError:
        raise LibraryError(
            "libibverbs is not installed; install it: apt-get install libibverbs1 (or dnf install libibverbs)"
        ) from None
    if not hasattr(library, "verbs_register_driver_34"):
        raise LibraryError(f"this host's libibverbs has another provider ABI; soft RoCE needs {SUPPORTED}")
    return str(PROVIDER).removesuffix("-rdmav34.so")
