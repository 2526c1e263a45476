"""Two stock agents of NIXL whose backend asks for permits: writes and reads, of one descriptor and of many.

    plugin_nixl.py BACKEND FILE    writes FILE.half in the middle, and goes on when FILE.on is there

Exits 0 when every byte and notification is as it should be, and prints one JSON line: how many transfers were under way
when they had been started, and the plugins that NIXL lists. With ADAPTED=1 the agents are the adapter's; with CONTEXT=1
this thread has told the preloaded library that it works for stage 1 of request 77.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy

from mfsd.client.shim import NONE_U32, Shim, context_of
from tests.support.waiting import eventually

SIZE = 4 << 20
ROUNDS = 8
"""Of a write and a read each."""
PIECES = (1, 16, 512)


def agents_of(backend: str) -> tuple[dict[str, Any], dict[str, Any]]:
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    areas = {name: numpy.zeros(SIZE, dtype=numpy.uint8) for name in ("one", "two")}
    agents: dict[str, Any] = {}
    for name, area in areas.items():
        agents[name] = nixl_agent(name, nixl_agent_config(backends=[backend]))
        agents[name].register_memory([(area.ctypes.data, SIZE, 0, "")], "DRAM")
    agents["one"].add_remote_agent(agents["two"].get_agent_metadata())
    agents["two"].add_remote_agent(agents["one"].get_agent_metadata())
    return agents, areas


def main(backend: str, place: str) -> None:
    if os.environ.get("ADAPTED"):
        import mooncake_adapter

        mooncake_adapter.install()
    if os.environ.get("CONTEXT"):
        shim = Shim.find()
        assert shim is not None
        shim.context_set(context_of(stage=1, request_id=77, batch=NONE_U32))
    agents, areas = agents_of(backend)
    one, two = agents["one"], agents["two"]
    started = {"PROC": 0, "DONE": 0}

    def move(operation: str, seed: int, pieces: int, notification: bytes) -> None:
        source, target = ("one", "two") if operation == "WRITE" else ("two", "one")
        areas[source][:] = numpy.random.default_rng(seed).integers(0, 256, SIZE, dtype=numpy.uint8)
        areas[target][:] = 0
        step = SIZE // pieces
        lists = [
            one.get_xfer_descs([(area.ctypes.data + at * step, step, 0) for at in range(pieces)], "DRAM")
            for area in areas.values()
        ]
        handle = one.initialize_xfer(operation, *lists, "two", notification)
        for _ in range(2):  # a handle may be posted again
            started[one.transfer(handle)] += 1
            eventually(lambda: one.check_xfer_state(handle) == "DONE", "the end of a transfer", pause_s=0.0005)
            assert (areas["one"] == areas["two"]).all(), f"{operation} in {pieces} pieces"
            assert eventually(two.get_new_notifs) == {"one": [notification]}
        one.release_xfer_handle(handle)

    for at in range(ROUNDS):
        pieces = PIECES[at % len(PIECES)]
        move("WRITE", 2 * at, pieces, b"written")
        move("READ", 2 * at + 1, pieces, b"read" * 1000)  # longer than what a held transfer has room for
        if at == ROUNDS // 2:
            Path(place + ".half").touch()
            eventually(Path(place + ".on").exists, "the word to go on")
    print(json.dumps({"started": started, "plugins": sorted(one.get_plugin_list())}), flush=True)
    os._exit(0)  # at exit the wheel's libnl and the system's fall over each other


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
