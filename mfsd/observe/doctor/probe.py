"""Runs under the shim and reports what the loader made of it: one JSON object on standard output.

Any Python that programs here use may run it, so it needs only the standard library: ``python probe.py [LIBRARY...]``.
The libraries are loaded, not used.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

LOOKED_FOR = ("mooncake", "nvidia.nccl", "nixl", "deep_ep", "nvidia.nvshmem")
VERBS = "libibverbs.so.1"
MAPS = Path("/proc/self/maps")


def mapped_at(address: int) -> str:
    """The file whose mapping contains the address."""
    for line in MAPS.read_text().splitlines():
        fields = line.split(None, 5)
        low, high = (int(part, 16) for part in fields[0].split("-"))
        if low <= address < high:
            return fields[5] if len(fields) == 6 else ""
    return ""


def symbol_homes() -> dict[str, str]:
    """For each way of asking, the file where it finds ibv_open_device, or "". Raises OSError without libibverbs."""
    everywhere = ctypes.CDLL(None)
    verbs = ctypes.c_void_p(ctypes.CDLL(VERBS)._handle)
    everywhere.dlsym.restype = everywhere.dlvsym.restype = ctypes.c_void_p
    addresses = {
        "dlsym": everywhere.dlsym(verbs, b"ibv_open_device"),
        "dlvsym": everywhere.dlvsym(verbs, b"ibv_open_device", b"IBVERBS_1.1"),
    }
    return {way: mapped_at(address) if address else "" for way, address in addresses.items()}


class Object(ctypes.Structure):
    """The start of struct dl_phdr_info."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


def loaded_before(part: str) -> list[str]:
    """Objects that the loader searches for a symbol before the one whose name contains ``part``."""
    names: list[str] = []

    def each(found: Any, _size: int, _data: None) -> int:
        names.append((found.contents.name or b"").decode(errors="replace"))
        return int(part in names[-1])

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Object), ctypes.c_size_t, ctypes.c_void_p)
    ctypes.CDLL(None).dl_iterate_phdr(callback(each), None)
    return [name for name in names[:-1] if name]


def packages() -> dict[str, str]:
    """Folders of the packages of interest that this Python finds. None of them is imported."""
    found = {}
    for name in LOOKED_FOR:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.submodule_search_locations:
            found[name] = next(iter(spec.submodule_search_locations))
    return found


def main() -> None:
    mapped = {line.split(None, 5)[5] for line in MAPS.read_text().splitlines() if "libmfs_shim" in line}
    answer: dict[str, object] = {"python": sys.version.split()[0], "packages": packages(), "shim": sorted(mapped)}
    answer["before"] = loaded_before("libmfs_shim") if mapped else []
    loaded = {}
    for library in sys.argv[1:]:
        try:
            ctypes.CDLL(library)
            loaded[library] = ""
        except OSError as error:
            loaded[library] = str(error)
    answer["loaded"] = loaded
    if not loaded:
        try:
            answer["homes"] = symbol_homes()
        except OSError as error:
            answer["homes_error"] = str(error)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
