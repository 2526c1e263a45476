"""A process with NIXL agents of one version: two adapted ones and one that is not, with shared memory.

A test's function runs inside it, so that a process loads only one version of NIXL, and the test's own process none of
its libraries, which do not end cleanly.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from mooncake_adapter.metadata import MetadataSources
from mooncake_adapter.session import Holder
from mooncake_adapter.warn_once import WarnOnce
from tests.support.scripted_session import ScriptedSession
from tests.support.waiting import eventually

SIZE = 64 << 20
MARKS = (48, 40, 34, None, None, None, 8, 1)
"""Three lanes above the program's own backend, whose class is 6, and one below it."""


class MarkedScript(ScriptedSession):
    """A scripted session whose fabric marks some classes."""

    @property
    def dscp(self) -> list[int | None]:
        return list(MARKS)


class Warnings(WarnOnce):
    """Keeps the warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def warn(self, kind: str, text: str, *values: object) -> None:
        if kind not in self._said:
            self.texts.append(text % values)
        super().warn(kind, text, *values)


@dataclass
class World:
    """The contents of the process: agents "own" and "peer" are adapted, "stock" is not."""

    wheel: Path
    session: MarkedScript = field(default_factory=MarkedScript)
    once: Warnings = field(default_factory=Warnings)

    def __post_init__(self) -> None:
        self.sources = MetadataSources(self.once)
        self.areas: dict[str, Any] = {}
        self.agents: dict[str, Any] = {}
        self.stock_class: Any = None
        self.adapted_class: Any = None
        self.api: Any = None

    def load(self, early: bool = False) -> None:
        import nixl_cu12._api as api

        from mooncake_adapter.nixl import agent

        vars(agent)["device_chosen"] = lambda: "mfs0"  # over TCP there would be no lanes

        self.api, self.stock_class = api, api.nixl_agent
        if early:
            self.make("early", self.stock_class)
        holder = Holder(lambda: cast(Any, self.session))
        self.adapted_class = agent.adapted(api.nixl_agent, holder, self.sources, self.once)
        for name, kind in (("own", self.adapted_class), ("peer", self.adapted_class), ("stock", self.stock_class)):
            self.make(name, kind)
        for name in ("peer", "stock"):
            self.own.add_remote_agent(self.agents[name].get_agent_metadata())
            self.agents[name].add_remote_agent(self.own.get_agent_metadata())

    def make(self, name: str, kind: Any, **config: Any) -> Any:
        import numpy

        area = self.areas[name] = numpy.zeros(SIZE, dtype=numpy.uint8)
        agent = self.agents[name] = kind(name, self.api.nixl_agent_config(backends=["UCX"], **config))
        agent.register_memory([(area.ctypes.data, SIZE, 0, "")], "DRAM", ["UCX"])
        return agent

    @property
    def own(self) -> Any:
        return self.agents["own"]

    @property
    def area(self) -> Any:
        return self.areas["own"]

    def reset(self) -> None:
        """Resets everything to the state in which nothing has been sent or reported."""
        vars(self.session).pop("submit_transfer", None)
        self.session.__init__()
        self.once.texts.clear()
        self.once._said.clear()
        self.sources.ranges.clear()
        self.sources.lease_s = 30.0
        for agent in self.agents.values():
            agent.get_new_notifs()

    def fill(self, seed: int, name: str = "own") -> None:
        import numpy

        self.areas[name][:] = numpy.random.default_rng(seed).integers(0, 256, SIZE, dtype=numpy.uint8)

    def lists(self, peer: str, size: int, pieces: int = 1) -> tuple[Any, Any]:
        """Returns lists of the first `size` bytes here and at the peer, in `pieces` descriptors."""
        step = size // pieces
        return tuple(
            self.own.get_xfer_descs([(base + at * step, step, 0) for at in range(pieces)], "DRAM")
            for base in (self.area.ctypes.data, self.areas[peer].ctypes.data)
        )

    def handle(self, operation: str, peer: str, size: int, pieces: int = 1, notification: bytes = b"") -> Any:
        """Makes a handle from prepared lists."""
        local, remote = self.lists(peer, size, pieces)
        sides = (self.own.prep_xfer_dlist("NIXL_INIT_AGENT", local), self.own.prep_xfer_dlist(peer, remote))
        order = list(range(pieces))
        made = self.own.make_prepped_xfer(operation, sides[0], order, sides[1], order, notification)
        for side in sides:
            self.own.release_dlist_handle(side)
        return made

    def finish(self, handle: Any) -> str:
        """Polls a transfer until it has ended; returns the last answer."""

        def ended() -> str | None:
            state = self.own.check_xfer_state(handle)
            return None if state == "PROC" else str(state)

        return eventually(ended, "the end of a transfer", pause_s=0.0005)

    def notified(self, name: str = "peer") -> list[bytes]:
        """Returns the notifications of this agent since the last call."""
        return [one for several in self.agents[name].get_new_notifs().values() for one in several]

    def same(self, peer: str, size: int) -> bool:
        return bool((self.area[:size] == self.areas[peer][:size]).all())


def _serve(pipe: Connection, wheel: Path, early: bool, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.path.insert(0, str(wheel))
    world = World(wheel)
    try:
        world.load(early)
        pipe.send("ready")
    except BaseException:
        pipe.send(traceback.format_exc())
        os._exit(1)
    while (function := pipe.recv()) is not None:
        try:
            world.reset()
            function(world)
            pipe.send("")
        except BaseException:
            pipe.send(traceback.format_exc())
    os._exit(0)


class WorldProcess:
    """Runs functions in a process with a World. Leaving the context ends it."""

    def __init__(self, wheel: Path, environment: Mapping[str, str], early: bool = False) -> None:
        """`early`: the program makes an agent before the adapter is installed."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, wheel, early, dict(environment)), daemon=True)
        self._process.start()
        answer = self._answer()
        assert answer == "ready", answer

    def _answer(self) -> str:
        assert self._pipe.poll(100), "the process with NIXL does not answer"
        return str(self._pipe.recv())

    def run(self, function: Callable[[World], None]) -> None:
        self._pipe.send(function)
        failure = self._answer()
        assert not failure, failure

    def __enter__(self) -> WorldProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()
