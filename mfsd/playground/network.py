"""Makes nodes as network namespaces around one bridge. They end with the sandbox, so nothing here removes them."""

from __future__ import annotations

import subprocess

CONTROL_ADDRESS = "10.99.0.254"
"""Address of the bridge, where etcd and the coordinators run, outside the nodes."""


def ip(*arguments: str) -> None:
    """Runs iproute2's `ip`. OSError has its error message."""
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=30)
    if result.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {result.stderr.strip()}")


def node_address(number: int) -> str:
    """Returns the IPv4 address of a node's `eth0`. Numbers begin at 1."""
    return f"10.99.0.{number}"


def on_node(node: str, command: list[str]) -> list[str]:
    """Returns the command line that runs a command in a node's network."""
    return ["ip", "netns", "exec", node, *command]


def build_nodes(names: list[str]) -> None:
    """Makes the bridge and, for each name, a namespace with an `eth0`."""
    ip("link", "set", "dev", "lo", "up")
    ip("link", "add", "name", "br0", "type", "bridge")
    ip("address", "add", f"{CONTROL_ADDRESS}/24", "dev", "br0")
    ip("link", "set", "dev", "br0", "up")
    for number, name in enumerate(names, 1):
        port = f"port{number}"
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "dev", "lo", "up")
        ip("link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", "dev", port, "master", "br0", "up")
        ip("-n", name, "address", "add", f"{node_address(number)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "dev", "eth0", "up")
