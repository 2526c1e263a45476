"""Hosts as network namespaces around a bridge, whose links can be cut."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

CLONE_NEWNET = 0x40000000


def ip(command: str) -> None:
    result = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
    assert result.returncode == 0, f"ip {command}: {result.stderr}"


class Host:
    """One namespace with one port."""

    def __init__(self, namespace: str, switch: str, number: int) -> None:
        self.namespace = namespace
        self.address = f"10.77.0.{number}"
        self.prefix = ("ip", "netns", "exec", namespace)
        """Words in front of a command that is to run on this host."""
        self._switch, self._port = switch, f"p{number}"

    def enter(self) -> Callable[[], None]:
        """Returns a preexec_fn that lets the program start on this host."""
        libc = ctypes.CDLL(None, use_errno=True)

        def enter() -> None:
            descriptor = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
            if libc.setns(descriptor, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {self.namespace}")
            os.close(descriptor)

        return enter

    def cut(self) -> None:
        """Sets the switch's port down: no packet gets through, and no connection is closed."""
        ip(f"-n {self._switch} link set dev {self._port} down")

    def heal(self) -> None:
        ip(f"-n {self._switch} link set dev {self._port} up")


class Hosts:
    """`count` hosts with addresses from 10.77.0.1 on. Leaving the context removes them."""

    def __init__(self, count: int) -> None:
        self._name = f"mfs{os.getpid()}"
        self._count = count
        self._stack = ExitStack()

    def __enter__(self) -> list[Host]:
        with self._stack as stack:
            switch = f"{self._name}s"
            self._namespace(switch)
            ip(f"-n {switch} link add name br0 type bridge")
            ip(f"-n {switch} link set dev br0 up")
            hosts = []
            for number in range(1, self._count + 1):
                host = Host(f"{self._name}h{number}", switch, number)
                self._namespace(host.namespace)
                ip(f"-n {host.namespace} link add name eth0 type veth peer name p{number} netns {switch}")
                ip(f"-n {host.namespace} addr add {host.address}/24 dev eth0")
                ip(f"-n {host.namespace} link set dev eth0 up")
                ip(f"-n {switch} link set dev p{number} master br0 up")
                hosts.append(host)
            self._stack = stack.pop_all()
        return hosts

    def _namespace(self, name: str) -> None:
        ip(f"netns add {name}")
        self._stack.callback(ip, f"netns del {name}")
        ip(f"-n {name} link set dev lo up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
