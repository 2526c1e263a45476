"""Starts the program that asks libibverbs (:mod:`mfsd.verbs.program`), and reads its answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

PROGRAM = Path(__file__).with_name("program.py")
SYSTEM_PYTHON = Path("/usr/bin/python3")
"""The Python for which the distribution builds python3-pyverbs."""
LIMIT_S = 10.0
"""Time after which a provider that hangs is ended."""
PACKAGE = "apt-get install python3-pyverbs (dnf install python3-pyverbs)"


class VerbsMissing(Exception):
    """pyverbs cannot be used here, so sysfs is read. One line says why."""


class VerbsFailed(Exception):
    """libibverbs has failed. One line says why."""


class Gid(Struct, frozen=True):
    gid: str
    type: str


class Port(Struct, frozen=True):
    state: str
    link: str
    rate_bytes_per_s: int
    """0: unknown."""
    mtu_bytes: int
    gids: dict[int, Gid]


class Device(Struct, frozen=True):
    error: str = ""
    """Why it could not be opened. Then nothing else is known."""
    firmware: str = ""
    capabilities: dict[str, int] = {}
    ports: dict[int, Port] = {}

    @property
    def rate_bytes_per_s(self) -> int:
        """Rate of the fastest port; 0: unknown."""
        return max((port.rate_bytes_per_s for port in self.ports.values()), default=0)


class Devices(Struct, frozen=True):
    python: str
    """The Python whose pyverbs was used."""
    devices: dict[str, Device]


class Message(Struct, frozen=True):
    """A write of a queue pair to itself."""

    bytes: int
    dscps: list[int] | None
    """DSCPs on packets from the port to itself. None: this user may not see them."""


class _Answer(Struct, frozen=True):
    missing: str = ""
    error: str = ""
    python: str = ""
    devices: dict[str, Device] = {}
    bytes: int = 0
    dscps: list[int] | None = None


def command(arguments: Sequence[str], python: Path = SYSTEM_PYTHON) -> list[str]:
    """The command line. Isolated: packages of this Python and variables of the user do not count."""
    return [str(python), "-I", str(PROGRAM), *arguments]


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment without the shim: the doctor's attempts are no program's traffic."""
    kept = {name: value for name, value in inherited.items() if name != "LD_PRELOAD"}
    preloaded = [name for name in inherited.get("LD_PRELOAD", "").split(":") if name and "libmfs_shim" not in name]
    return kept | ({"LD_PRELOAD": ":".join(preloaded)} if preloaded else {})


def ask_devices(python: Path = SYSTEM_PYTHON) -> Devices:
    """Returns all devices. Raises VerbsMissing or VerbsFailed."""
    answer = _ask(["devices"], python)
    return Devices(answer.python, answer.devices)


def ask_message(device: str, port: int, gid_index: int, dscp: int, python: Path = SYSTEM_PYTHON) -> Message:
    """Moves a message from the port to itself. Raises VerbsMissing or VerbsFailed."""
    answer = _ask(["message", device, str(port), str(gid_index), str(dscp)], python)
    return Message(answer.bytes, answer.dscps)


def _ask(arguments: Sequence[str], python: Path) -> _Answer:
    argv = command(arguments, python)
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, env=environment(os.environ)
        )
    except FileNotFoundError as error:
        raise VerbsMissing(f"there is no {argv[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise VerbsFailed(f"libibverbs has not answered after {LIMIT_S:g} s") from error
    except OSError as error:
        raise VerbsMissing(f"{argv[0]}: {error.strerror}") from error
    return answer_of(done.returncode, done.stdout, done.stderr)


async def ask_devices_later(python: Path = SYSTEM_PYTHON) -> Devices:
    """As `ask_devices`, without blocking the event loop."""
    argv = command(["devices"], python)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(os.environ)
        )
    except OSError as error:
        raise VerbsMissing(f"{argv[0]}: {error.strerror}") from error
    try:
        output, errors = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except asyncio.TimeoutError as error:
        raise VerbsFailed(f"libibverbs has not answered after {LIMIT_S:g} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    answer = answer_of(process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace"))
    return Devices(answer.python, answer.devices)


def answer_of(status: int, output: str, errors: str) -> _Answer:
    """Decodes the answer. Raises VerbsMissing or VerbsFailed. Warnings of libibverbs on standard error are ignored."""
    try:
        answer = msgspec.json.decode(output, type=_Answer)
    except msgspec.MsgspecError as error:
        message = " ".join(errors.split())[-200:] or " ".join(output.split())[-200:] or "nothing"
        raise VerbsFailed(f"the program that loads pyverbs ended with {status}: {message}") from error
    if answer.missing:
        raise VerbsMissing(answer.missing)
    if answer.error:
        raise VerbsFailed(answer.error)
    return answer
