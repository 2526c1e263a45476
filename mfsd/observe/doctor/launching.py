"""How a program would start under the shim: the file that the kernel runs, its interpreter, the probe in its place."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from mfsd.observe.doctor import probe
from mfsd.observe.doctor.host import Host, NoAnswer, run_program
from nccl_shim.run import LIBRARY, preload

INTERPOSED = ("dlsym", "dlvsym", "ibv_open_device", "ibv_create_qp", "ibv_modify_qp", "ibv_destroy_qp", "ibv_create_cq")
"""Symbols that the shim interposes; it defines more."""
BINDING = re.compile(r"binding file (?P<user>\S+) \[\d+\] to (?P<target>\S+) \[\d+\]: normal symbol `(?P<symbol>\w+)'")
"""A line of LD_DEBUG=bindings."""


class Answer(Struct, frozen=True):
    """The probe's output."""

    packages: dict[str, str]
    loaded: dict[str, str]
    """Library -> why it could not be loaded; empty if it was."""
    python: str
    shim: list[str]
    before: list[str] = []
    """Files that the loader searches for symbols before the shim."""
    homes: dict[str, str] = {}
    """Way of finding ibv_open_device -> file in which it was found."""
    homes_error: str = ""
    bindings: dict[str, dict[str, str]] = {}
    """Library file name -> symbol that the shim also defines -> file that the loader bound it to."""


def executable(host: Host) -> Path | None:
    """The file that ``host.command`` starts, as execvp would find it."""
    found = shutil.which(host.command[0], path=host.environ.get("PATH")) if host.command else None
    return Path(found) if found else None


def interpreter(script: Path) -> Path | None:
    """The program that the first line of a script names; None for any other file."""
    try:
        with script.open("rb") as file:
            line = file.read(256).split(b"\n")[0]
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = os.fsdecode(line[2:]).split()
    if words and Path(words[0]).name == "env":
        names = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
        found = shutil.which(names[0]) if names else None
        return Path(found) if found else None
    return Path(words[0]) if words else None


def python(host: Host) -> str:
    """The Python that ``host.command`` runs in, so that the probe sees its packages; ours if it runs in none."""
    program = executable(host)
    for candidate in (program, interpreter(program) if program else None):
        if candidate is not None and candidate.name.startswith("python"):
            return str(candidate)
    return sys.executable


def ask_probe(host: Host, libraries: tuple[str, ...] = ()) -> Answer:
    """Runs the probe with the shim preloaded, once for each set of libraries. Raises NoAnswer.

    With libraries to load, the loader itself reports which of their symbols it bound to the shim (LD_DEBUG, ld.so(8)).
    """
    if libraries not in host.probed:
        host.probed[libraries] = _run_probe(host, libraries)
    answer = host.probed[libraries]
    assert isinstance(answer, Answer)
    return answer


def _run_probe(host: Host, libraries: tuple[str, ...]) -> Answer:
    with tempfile.TemporaryDirectory(prefix="mfs-doctor-") as folder:
        environment = {
            **host.environ,
            "LD_PRELOAD": preload(LIBRARY, host.environ.get("LD_PRELOAD")),
            "MFS_LOG": "quiet",
        }
        if libraries:
            environment |= {"LD_DEBUG": "bindings", "LD_BIND_NOW": "1", "LD_DEBUG_OUTPUT": f"{folder}/bindings"}
        text = run_program([python(host), str(Path(probe.__file__)), *libraries], environment)
        try:
            answer = msgspec.json.decode(text.splitlines()[-1], type=Answer)
        except (IndexError, msgspec.MsgspecError) as error:
            raise NoAnswer(f"the probe under {python(host)} answered {text[-200:]!r}") from error
        bindings: dict[str, dict[str, str]] = {}
        for log in Path(folder).glob("bindings.*"):
            for match in BINDING.finditer(log.read_text(errors="replace")):
                if match["symbol"] in INTERPOSED:
                    bindings.setdefault(Path(match["user"]).name, {})[match["symbol"]] = match["target"]
    return msgspec.structs.replace(answer, bindings=bindings)
