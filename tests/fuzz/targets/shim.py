"""What the shim reads from the environment of the program that it is preloaded into."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz.inputs import BETWEEN, messages

ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "tests/native"
SHIM = ROOT / "nccl_shim/libmfs_shim.so"
NAMES = ("MFS_MODE", "MFS_SOCKET", "MFS_LOG", "MLX5_SINGLE_THREADED", "NCCL_PROFILER_PLUGIN", "MFS_MARK")
LINES_MAX = 4
"""One for each reason to say anything."""
RUN_S_MAX = 100.0

GOOD = tuple(
    BETWEEN.join(values)
    for values in (
        (b"enforce", b"/nowhere/mfsd.sock", b"", b"0"),
        (b"observe", b"", b"quiet", b"1"),
        (b"off", b"relative/mfsd.sock"),
        (b"", b"/" + b"x" * 200, b"loud"),
        (b"enforce", b"/dev/null", b"", b"", str(SHIM).encode()),
        (b"mark", b"", b"", b"", b"", b"dscp=46,34,-,8;stages=background:3;sizes=p2d:1;rule=library:a%2Cb,dscp:11"),
        (b"mark", b"", b"", b"", b"", b"dscp=46;rule=peer:fe80::/10,role:kv,dscp:8;rule=process:x,communicator:y"),
    )
)


@contextlib.contextmanager
def environment(folder: Path) -> Iterator[Callable[[bytes], None]]:
    """The program sends as if nothing were preloaded, and each complaint is one line."""
    verbs, program = folder / "libibverbs.so.1", folder / "environment"
    script = ("-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={NATIVE}/fake_verbs.map")
    gcc = ("gcc", "-std=gnu11", "-O1")
    sources = sorted(NATIVE.glob("fake_verbs*.c"))
    subprocess.run([*gcc, "-fPIC", "-shared", *sources, "-o", verbs, *script, "-lpthread"], check=True)
    source = ROOT / "tests/fuzz/environment.c"
    subprocess.run([*gcc, source, "-o", program, verbs, f"-Wl,-rpath,{folder}", "-lpthread"], check=True)
    bare = {name: value for name, value in os.environb.items() if not name.startswith(b"MFS_")}

    def check(data: bytes) -> None:
        values = [value.replace(b"\0", b"") for value in messages(data)]
        given = dict(zip((name.encode() for name in NAMES), values, strict=False))
        result = subprocess.run(
            [program], env={**bare, **given, b"LD_PRELOAD": os.fsencode(SHIM)}, capture_output=True, timeout=RUN_S_MAX
        )
        assert (result.returncode, result.stdout) == (0, b"sent\n"), result
        lines = result.stderr.split(b"\n")[:-1]
        assert len(lines) <= LINES_MAX, lines
        for line in lines:
            assert line.startswith(b"mfs: ") and min(line) >= 32, line

    yield check
