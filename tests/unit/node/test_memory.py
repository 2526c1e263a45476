"""How many programs fit into the daemon's memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mfsd import _native
from mfsd.node.memory import BASE_BYTES, CLIENT_BYTES, bytes_for, clients_that_fit, memory_limit_bytes

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20


def test_a_limit_leaves_room_for_so_many() -> None:
    assert clients_that_fit(None, 256) == 256
    assert clients_that_fit(256 * MIB, 256) == (256 * MIB - BASE_BYTES) // CLIENT_BYTES == 53
    assert clients_that_fit(bytes_for(256), 256) == 256
    assert clients_that_fit(bytes_for(256) - 1, 256) == 255
    assert clients_that_fit(10 * MIB, 256) == 1


def test_what_one_program_takes_is_not_less_than_reckoned(tmp_path: Path) -> None:
    """Its segment and the arbiter's private part, every page of them touched."""
    source = tmp_path / "size.c"
    source.write_text(
        '#include "arbiter/state.h"\n#include <stdio.h>\n'
        'int main(void) { return printf("%zu\\n", sizeof(struct session)) < 0; }\n'
    )
    program = tmp_path / "size"
    include = ("-I", ROOT / "csrc", "-I", ROOT / "csrc/include")
    subprocess.run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", *include, source, "-o", program], check=True)
    private = int(subprocess.check_output([program]))
    assert _native.SEGMENT_BYTES + private <= CLIENT_BYTES


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "268435456"}, 256 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "1000", "memory.max": "2000"}, 1000),
        ("0::/a\n", {"a/memory.max": "max"}, None),
        ("3:cpu,memory:/a\n0::/\n", {"cpu,memory/a/memory.limit_in_bytes": "4096"}, 4096),
        ("3:memory:/kubepods/x\n", {"memory/memory.limit_in_bytes": "4096"}, 4096),
        ("3:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("0::/a\n", {"unified/a/memory.max": "7"}, 7),
        ("0::/a\n", {}, None),
    ],
)
def test_limits_of_both_versions_of_control_groups(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert memory_limit_bytes(tmp_path / "proc", tmp_path / "cgroup") == limit
    assert memory_limit_bytes(tmp_path / "none", tmp_path / "cgroup") is None
