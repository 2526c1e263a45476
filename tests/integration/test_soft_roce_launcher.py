"""mfs-soft-roce: identity, exit code, signals, several launches and devices, and its refusals."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bench.ports import free_port
from mfsd.soft_roce import namespace

ROOT = Path(__file__).parents[2]
NOBODY = 65534


def test_exits_as_the_program_does(soft_roce):
    assert soft_roce.run("sh", "-c", "exit 37", check=False).returncode == 37
    assert soft_roce.run("no-such-program", check=False).returncode == 127
    assert soft_roce.run("/etc/passwd", check=False).returncode == 126


def test_is_replaced_by_the_program_so_signals_reach_it(soft_roce):
    process = soft_roce.start("sh", "-c", "echo $$; exec sleep 100")
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signal.SIGTERM)
    assert process.wait(100) == -signal.SIGTERM


def names(folder: str) -> list[str]:
    return sorted(entry.name for entry in Path(folder).iterdir())


def test_only_the_program_sees_the_device(soft_roce):
    before = names("/sys/class"), names("/dev")
    listing = soft_roce.run("sh", "-c", "ls /sys/class/infiniband /dev/infiniband; cat /sys/class/net/lo/mtu").stdout
    assert listing.split()[-1] == Path("/sys/class/net/lo/mtu").read_text().strip()
    assert "mfs0" in listing and "uverbs0" in listing
    assert (names("/sys/class"), names("/dev")) == before


def test_dev_keeps_working(soft_roce):
    command = "echo x >/dev/null && head -c 8 /dev/urandom | wc -c && test -d /dev/shm && echo y >/dev/stdout"
    assert soft_roce.run("sh", "-c", command).stdout.split() == ["8", "y"]


def test_launches_inside_launches(soft_roce):
    inner = soft_roce.argv("ibv_devices", options=("--device", "inner"))
    output = soft_roce.run(*inner, options=("--device", "outer")).stdout
    assert "inner" in output and "outer" not in output


def test_a_device_in_use_keeps_its_address(soft_roce):
    holder = soft_roce.start("sh", "-c", "echo ready; exec sleep 100")
    assert holder.stdout.readline() == "ready\n"
    refused = soft_roce.run("true", address="127.0.0.9", check=False)
    assert refused.returncode == 125
    assert "mfs0 is in use" in refused.stderr and "--device" in refused.stderr
    soft_roce.run("true")
    holder.kill()
    holder.wait()
    soft_roce.run("true", address="127.0.0.9")


@pytest.mark.parametrize(
    "options, message",
    [
        (("--rate", "fast"), "rate 'fast': give at least 8kbit"),
        (("--device", "a/b"), "device name 'a/b'"),
        (("--device", "a=1.2.3"), "'1.2.3' is not an IPv4 address"),
        (("--device", "a=192.0.2.77"), "192.0.2.77 belongs to no interface"),
        (("--device", "a", "--device", "a"), "--device a is given twice"),
        (("--netdev", "none0"), "--netdev none0: no interface of that name is up"),
    ],
)
def test_bad_options_are_named(soft_roce, options, message):
    result = soft_roce.run("true", options=options, address=None, check=False)
    assert result.returncode == 125
    assert message in result.stderr


def test_foreign_runtime_folder_is_refused(soft_roce):
    folder = soft_roce.runtime / "mfs-soft-roce"
    folder.mkdir()
    folder.chmod(0o777)
    result = soft_roce.run("true", check=False)
    assert result.returncode == 125
    assert f"{folder} is not a folder that only you can write to" in result.stderr


def system_libibverbs() -> Path:
    ctypes.CDLL("libibverbs.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split()[-1] for line in lines if "/libibverbs.so.1" in line))


def test_a_libibverbs_of_the_programs_own_gets_one_line(soft_roce, tmp_path):
    """It does not find the device, and the program's user is reported why; the system's library gets no such line."""
    copy = tmp_path / "libibverbs-0a1b2c3d.so.1"
    copy.write_bytes(system_libibverbs().read_bytes().replace(b"libibverbs.so.1\0", b"libibverbs-copy\0"))
    program = "import ctypes, sys\nctypes.CDLL(sys.argv[1]).ibv_get_device_list(None)"
    result = soft_roce.run(sys.executable, "-c", program, copy)
    lines = [line for line in result.stderr.splitlines() if line.startswith("mfs soft RoCE: ")]
    assert lines == [
        f"mfs soft RoCE: code that uses {copy} does not find the device; "
        "start the program with LD_PRELOAD=libibverbs.so.1"
    ]
    assert "mfs soft RoCE" not in soft_roce.run(sys.executable, "-c", program, "libibverbs.so.1").stderr
    preloaded = soft_roce.run("env", "LD_PRELOAD=libibverbs.so.1", sys.executable, "-c", program, copy)
    assert "mfs soft RoCE" not in preloaded.stderr


def test_preloads_for_a_package_that_brings_a_libibverbs(soft_roce, tmp_path):
    show = ("sh", "-c", "echo ${LD_PRELOAD-none}")
    assert soft_roce.run(*show, env={"PYTHONPATH": str(ROOT), "LD_PRELOAD": ""}).stdout.strip() == ""
    (tmp_path / "wheel.libs").mkdir()
    (tmp_path / "wheel.libs/libibverbs-0a1b2c3d.so.1.14.48.0").touch()
    output = soft_roce.run(*show, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}).stdout
    assert output.split()[-1] == "libibverbs.so.1"


def test_missing_provider_is_named(monkeypatch):
    from mfsd.soft_roce import library

    monkeypatch.setattr(library, "PROVIDER", Path("/nowhere/libmfs-rdmav34.so"))
    with pytest.raises(library.LibraryError, match="pip install"):
        library.provider_prefix()


def test_netlink_is_denied_by_protocol():
    """The filter that hides a kernel's own RDMA devices, shown on a protocol that every kernel has."""
    program = (
        "import socket; from mfsd.soft_roce.namespace import deny_netlink\n"
        "deny_netlink(socket.NETLINK_ROUTE)\n"
        "try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)\n"
        "except OSError as error: print(error.errno)\n"
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16).close()\n"
        "socket.socket().close(); print('others')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert result.stdout.split() == ["93", "others"], result.stderr


@pytest.fixture
def readable_copy() -> Iterator[Path]:
    """The launcher where any user can read it, run by the system's Python."""
    folder = Path(tempfile.mkdtemp(prefix="mfs-test-"))
    folder.chmod(0o755)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "mfsd", folder / "mfsd", ignore=ignore)
    shutil.copytree(Path(click.__file__).parent, folder / "click", ignore=ignore)
    for file in folder.rglob("*"):
        file.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which only root can; others test it by being one")
def test_ordinary_user(readable_copy):
    runtime = readable_copy / "runtime"
    runtime.mkdir()
    os.chown(runtime, NOBODY, NOBODY)
    runtime.chmod(0o700)
    launch = (
        *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
        *("/usr/bin/python3", "-m", "mfsd.soft_roce.launcher", "--address", "127.0.0.1", "--"),
    )
    environment = {**os.environ, "PYTHONPATH": str(readable_copy), "XDG_RUNTIME_DIR": str(runtime)}

    def run(*command: str) -> str:
        result = subprocess.run([*launch, *command], capture_output=True, text=True, env=environment, timeout=200)
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert run("id", "-u").strip() == str(NOBODY)
    assert "mfs0" in run("ibv_devices")
    one = f"ibv_rc_pingpong -g 0 -p {free_port()} -c"
    pair = f"{one} & while ! {one} 127.0.0.1; do sleep 0.1; done; wait"
    assert run("sh", "-c", pair).count("iters in") == 2


ACROSS_HOSTS = (
    ("ib_write_bw", "-F", "-n", "500"),
    # A datagram of the MTU of the device is longer than a packet of the link.
    ("ib_send_lat", "-F", "-c", "UD", "-s", "4096", "-n", "200"),
)


@pytest.mark.skipif(not namespace.has_sys_admin(), reason="makes network namespaces")
@pytest.mark.parametrize("command", ACROSS_HOSTS, ids=["rc", "ud"])
def test_network_namespaces(soft_roce, command):
    """Two hosts, each with the device of its own address, though the devices have one name."""
    names = [f"mfs-{os.getpid()}-{side}" for side in "ab"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        subprocess.run(f"ip -n {names[0]} link add eth0 type veth peer name eth0 netns {names[1]}".split(), check=True)
        for index, name in enumerate(names, 1):
            subprocess.run(f"ip -n {name} addr add 10.77.0.{index}/24 dev eth0".split(), check=True)
            subprocess.run(f"ip -n {name} link set eth0 up".split(), check=True)
        server, client = (["ip", "netns", "exec", name, *soft_roce.argv(*command, address=None)] for name in names)
        environment = soft_roce.environment()
        with subprocess.Popen(server, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                for _ in range(50):
                    result = subprocess.run(
                        [*client, "10.77.0.1"], capture_output=True, text=True, env=environment, timeout=200
                    )
                    if result.returncode == 0 or process.poll() is not None:
                        break
                assert result.returncode == 0, result.stdout + result.stderr
                assert "GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:02" in result.stdout
                assert process.wait(100) == 0
            finally:
                process.kill()
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
