"""mfs-run."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mooncake_adapter.nixl_plugins import FOLDER
from nccl_shim.run import LIBRARY, preload, unreachable, warnings
from tests.support.forked import Forked


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = ("LD_PRELOAD", "NCCL_PROFILER_PLUGIN")
    clean = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("MFS_")}
    return subprocess.run(
        [sys.executable, "-m", "nccl_shim.run", *arguments],
        env={**clean, **environment},
        capture_output=True,
        text=True,
    )


def environment_of(*options: str, **environment: str) -> dict[str, str]:
    done = run(*options, "--", "env", **environment)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "/x/s.so"),
        ("", "/x/s.so"),
        ("/a.so", "/x/s.so /a.so"),
        ("/a.so:/b.so /c.so", "/x/s.so /a.so /b.so /c.so"),
        ("/a.so /x/s.so", "/x/s.so /a.so"),
    ],
)
def test_preload_keeps_what_is_there(before: str | None, after: str) -> None:
    assert preload(Path("/x/s.so"), before) == after


def test_environment() -> None:
    seen = environment_of("--mode", "observe", "--socket", "some/where.sock")
    assert seen["LD_PRELOAD"] == str(LIBRARY)
    assert seen["MFS_MODE"] == "observe"
    assert seen["MFS_SOCKET"] == str(Path.cwd() / "some/where.sock")
    assert environment_of()["MFS_MODE"] == "enforce"
    assert environment_of(MFS_MODE="observe", MFS_SOCKET="/a/b")["MFS_SOCKET"] == "/a/b"
    assert environment_of("--quiet")["MFS_LOG"] == "quiet"


def test_nccls_profiler_plugin_is_ours_where_the_place_is_free(tmp_path: Path) -> None:
    assert environment_of()["NCCL_PROFILER_PLUGIN"] == str(LIBRARY)
    assert environment_of(NCCL_PROFILER_PLUGIN=str(LIBRARY))["NCCL_PROFILER_PLUGIN"] == str(LIBRARY)
    assert "NCCL_PROFILER_PLUGIN" not in environment_of("--mode", "off")
    assert "NCCL_PROFILER_PLUGIN" not in run("--", "true").stderr


def test_a_backend_of_nixl_asks_for_permits() -> None:
    seen = environment_of("--nixl-backend", "UCX")
    assert (seen["NIXL_PLUGIN_DIR"], seen["MFS_NIXL_BACKEND"]) == (str(FOLDER), "UCX")
    assert "MFS_NIXL_PLUGIN_DIR" not in seen
    seen = environment_of("--nixl-backend", "LIBFABRIC", NIXL_PLUGIN_DIR="/opt/nixl/plugins")
    assert (seen["NIXL_PLUGIN_DIR"], seen["MFS_NIXL_PLUGIN_DIR"]) == (str(FOLDER), "/opt/nixl/plugins")
    inner = environment_of("--nixl-backend", "UCX", NIXL_PLUGIN_DIR=str(FOLDER))  # of an mfs-run within another
    assert "MFS_NIXL_PLUGIN_DIR" not in inner
    assert f"NIXL_PLUGIN_DIR={FOLDER} MFS_NIXL_BACKEND=UCX" in run("--nixl-backend", "UCX", "--", "true").stderr


@pytest.mark.parametrize("backend", ["PIGEON", "MFS", ""])
def test_a_backend_that_is_not_there_is_named(backend: str) -> None:
    done = run("--nixl-backend", backend, "--", "true")
    assert done.returncode == 125
    assert (
        f"mfs-run: --nixl-backend {backend}: not a known backend; there is" in done.stderr
        and "LIBFABRIC" in done.stderr
    )
    observed = run("--mode", "observe", "--nixl-backend", "UCX", "--", "true")
    assert observed.returncode == 125 and "is only for --mode enforce" in observed.stderr


def test_another_profiler_plugin_is_left_alone(tmp_path: Path) -> None:
    done = run("--", "env", NCCL_PROFILER_PLUGIN="inspector")
    assert "NCCL_PROFILER_PLUGIN=inspector\n" in done.stdout
    assert "NCCL_PROFILER_PLUGIN=inspector is set: left as it is" in done.stderr
    (tmp_path / "libnccl-profiler.so").touch()
    done = run("--", "env", LD_LIBRARY_PATH=f"/nowhere:{tmp_path}")
    assert "NCCL_PROFILER_PLUGIN" not in done.stdout
    assert f"NCCL would load {tmp_path}/libnccl-profiler.so: left as it is" in done.stderr


def test_says_what_it_does(tmp_path: Path) -> None:
    done = run("--socket", str(tmp_path / "none.sock"), "--", "true")
    assert done.returncode == 0
    assert str(LIBRARY) in done.stderr
    assert f"no daemon listens at {tmp_path}/none.sock" in done.stderr
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s.sock"))
        assert "warning" not in run("--socket", str(tmp_path / "s.sock"), "--", "true").stderr
    assert run("--quiet", "--socket", str(tmp_path / "none.sock"), "--", "true").stderr == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize(("folder_mode", "socket_mode"), [(0o755, 0o660), (0o700, 0o666)])
def test_a_socket_that_the_user_may_not_open_is_named(folder: Path, folder_mode: int, socket_mode: int) -> None:
    path = folder / "run" / "s.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(socket_mode)
        path.parent.chmod(folder_mode)
        with Forked(lambda: warnings("nowhere", str(path), "enforce"), uid=65_534) as user:
            (warning,) = user.result
        assert f"this user may not open the daemon's socket {path}" in warning and "socket.group" in warning
        assert warnings("nowhere", str(path), "enforce") == []


def test_exit_codes() -> None:
    assert run("--", "sh", "-c", "exit 7").returncode == 7
    missing = run("--", "no-such-program-anywhere")
    assert missing.returncode == 127
    assert "no-such-program-anywhere: No such file" in missing.stderr
    assert run("--", "/etc/passwd").returncode == 126
    wrong = run("--", "true", MFS_MODE="fast")
    assert wrong.returncode == 125
    assert "MFS_MODE=fast is not one of enforce, observe, mark, off" in wrong.stderr
    assert run("--mode", "fast", "--", "true").returncode == 2


def test_help_teaches() -> None:
    text = run("--help").stdout
    for word in ("LD_PRELOAD", "--mode", "--socket", "observe", "mfsctl status", "mfs-run -- vllm serve"):
        assert word in text


def test_programs_that_cannot_be_reached(tmp_path: Path) -> None:
    plain = shutil.which("true")
    assert plain is not None
    assert unreachable(Path(plain)) is None
    setuid = tmp_path / "setuid"
    shutil.copy(plain, setuid)
    setuid.chmod(0o755 | stat.S_ISUID)
    assert "setuid" in (unreachable(setuid) or "")
    source = tmp_path / "s.c"
    source.write_text("int main(void) { return 0; }\n")
    static = tmp_path / "static"
    subprocess.run([shutil.which("cc") or "gcc", "-static", str(source), "-o", str(static)], check=True)
    assert "statically" in (unreachable(static) or "")
    assert "statically" in run("--", str(static)).stderr
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexit 0\n")
    assert unreachable(script) is None
