"""Which container a process is in, by what /proc says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mfsd.node.container import container_in, container_of

POD = "2f6e1c4a-9d0b-4a4e-8f25-0123456789ab"
CONTAINER = "c" * 64


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/"
            f"cri-containerd-{CONTAINER}.scope",
            f"pod {POD}",
        ),
        (f"0::/../../kubepods-besteffort-pod{POD.replace('-', '_')}.slice/crio-{CONTAINER}.scope", f"pod {POD}"),
        (f"0::/../../pod{POD}/{CONTAINER}", f"pod {POD}"),
        (f"12:pids:/kubepods/burstable/pod{POD}/{CONTAINER}\n1:name=systemd:/", f"pod {POD}"),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{'a' * 32}.slice/x", f"pod {'a' * 32}"),
        (
            f"0::/system.slice/containerd.service/kubepods-pod{POD.replace('-', '_')}.slice:cri-containerd:{CONTAINER}",
            f"pod {POD}",
        ),
        (f"0::/system.slice/docker-{CONTAINER}.scope", f"container {CONTAINER}"),
        (f"0::/docker/{CONTAINER}/inner", f"container {CONTAINER}"),
        (f"0::/machine.slice/libpod-{CONTAINER}.scope/container", f"container {CONTAINER}"),
        ("0::/system.slice/sshd.service", ""),
        ("0::/", ""),
        ("", ""),
        ("nothing of this kind", ""),
    ],
)
def test_the_names_that_runtimes_give(groups: str, found: str) -> None:
    assert container_in(groups) == found


def test_names_that_others_can_make_up_do_not_count() -> None:
    other = "ffffffff-0000-4000-8000-000000000000"
    assert container_in(f"0::/kubepods/pod{POD}/{CONTAINER}/kubepods/pod{other}") == f"pod {POD}"
    for made in (f"pod{other}", f"docker-{CONTAINER}.scope"):
        assert container_in(f"0::/user.slice/user-1000.slice/user@1000.service/{made}") == ""


def inner_pid(*unshare: str) -> tuple[subprocess.Popen[str], int]:
    """A process in namespaces of its own, and its pid as we see it."""
    program = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        ["unshare", *unshare, "--pid", "--fork", sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "1\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return process, int(children.split()[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make pid namespaces that count")
def test_without_a_name_the_pid_namespace_counts_unless_any_user_could_have_made_it() -> None:
    here = container_of(os.getpid())
    started = [inner_pid(), inner_pid(), inner_pid("--user", "--map-root-user")]
    try:
        first, second, unnamed = (container_of(pid) for _, pid in started)
        if here:  # the test itself is in a container that has a name
            assert {first, second, unnamed} == {here}
        else:
            assert first.startswith("pid namespace ") and second.startswith("pid namespace ") and first != second
            assert unnamed == ""
    finally:
        for process, _ in started:
            process.communicate("")
    assert container_of(2**22 + 1) == ""
