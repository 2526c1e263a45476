"""Two adapted agents of NIXL: writes and reads of several stages, each in the lane of its class. Run under mfs-run.

    adapted_nixl.py FILE [LANES]    writes FILE.half in the middle, and goes on when FILE.on is there; ends when so many
                                    lanes were taken

Prints one JSON line: the lanes that were taken. Exits 0 when every byte is as it should be.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy

import mooncake_adapter
from tests.support.waiting import eventually

SIZE = 4 << 20
ROUNDS = 6
LANES = 2
"""That these stages come to take under a daemon, once they are connected."""


def main(place: str, lanes: int) -> None:
    mooncake_adapter.install()
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    areas = {name: numpy.zeros(SIZE, dtype=numpy.uint8) for name in ("one", "two")}
    agents: dict[str, Any] = {}
    for name, area in areas.items():
        agents[name] = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        agents[name].register_memory([(area.ctypes.data, SIZE, 0, "")], "DRAM")
    one, two = agents["one"], agents["two"]
    one.add_remote_agent(two.get_agent_metadata())
    two.add_remote_agent(one.get_agent_metadata())
    lists = [one.get_xfer_descs([(area.ctypes.data, SIZE, 0)], "DRAM") for area in areas.values()]
    session: Any = mooncake_adapter.current_session()
    taken: set[str] = set()

    def move(operation: str, seed: int, **metadata: Any) -> None:
        source, target = ("one", "two") if operation == "WRITE" else ("two", "one")
        areas[source][:] = numpy.random.default_rng(seed).integers(0, 256, SIZE, dtype=numpy.uint8)
        areas[target][:] = 0
        with mooncake_adapter.transfer(request_id=seed, **metadata):
            handle = one.initialize_xfer(operation, *lists, "two", f"{seed}".encode())
            one.transfer(handle)
        eventually(lambda: one.check_xfer_state(handle) == "DONE", "the end of a transfer", pause_s=0.0005)
        assert (areas["one"] == areas["two"]).all(), f"{operation} {metadata}"
        assert eventually(two.get_new_notifs) == {"one": [f"{seed}".encode()]}
        taken.update(handle.transfer.cached)
        one.release_xfer_handle(handle)

    eventually(lambda: session.scheduled, "the session", pause_s=0.01)
    with session.batch(1, layers=8) as batch:
        at = 0
        while at < ROUNDS or len(taken) < lanes:
            move("WRITE", 10 * at + 1, stage=4)  # background: the scavenger's class
            move("READ", 10 * at + 2, stage=1, layer=2, batch=batch)  # reuse, two layers ahead of the batch
            move("WRITE", 10 * at + 3, stage=3)
            at += 1
            if at == ROUNDS // 2:
                Path(place + ".half").touch()
                eventually(Path(place + ".on").exists, "the word to go on")
    print(json.dumps({"lanes": sorted(taken)}), flush=True)
    os._exit(0)  # at exit the wheel's libnl and the system's fall over each other


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else LANES)
