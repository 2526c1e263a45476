"""``mfs-soft-roce``: runs a program with a software RoCE device."""

from __future__ import annotations

import ipaddress
import os
import sys

import click

from mfsd.soft_roce import bundled, library, namespace, network
from mfsd.soft_roce.device import Device, DeviceError, SharedDevice, runtime_folder
from mfsd.soft_roce.rate import parse_rate

DEFAULT_NAME = "mfs0"
CANNOT_EXECUTE, NOT_FOUND = 126, 127  # exit statuses of shells


def _default_address(netdev: str | None) -> tuple[ipaddress.IPv4Address, str]:
    known = network.addresses()
    if netdev is not None:
        if netdev not in known:
            raise DeviceError(f"--netdev {netdev}: no interface of that name is up with an IPv4 address; {_choices()}")
        return known[netdev], netdev
    if not known:
        raise DeviceError("no interface is up with an IPv4 address; bring one up: ip link set lo up")
    name = next(iter(known))
    return known[name], name


def _choices() -> str:
    return "there are: " + (", ".join(f"{name} {own}" for name, own in network.addresses().items()) or "none")


def _parse_address(text: str) -> tuple[ipaddress.IPv4Address, str]:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise DeviceError(f"address {text!r} is not an IPv4 address; {_choices()}") from None
    interface = network.interface_of(address)
    if interface is None:
        raise DeviceError(f"address {address} belongs to no interface of this host; {_choices()}")
    return address, interface


def _rate(text: str | None) -> int | None:
    try:
        return None if text is None else parse_rate(text)
    except ValueError as error:
        raise DeviceError(str(error)) from None


def parse_devices(
    specifications: tuple[str, ...], address: str | None, netdev: str | None, rate: str | None
) -> list[Device]:
    """Returns the devices of ``--device NAME[=ADDRESS[,RATE]]``. The other options supply the parts left out."""
    devices: list[Device] = []
    for specification in specifications or (DEFAULT_NAME,):
        name, _, rest = specification.partition("=")
        own_address, _, own_rate = rest.partition(",")
        if own_address or address:
            place, interface = _parse_address(own_address or address or "")
        else:
            place, interface = _default_address(netdev)
        if any(other.name == name for other in devices):
            raise DeviceError(f"--device {name} is given twice")
        devices.append(Device(name, place, netdev or interface, _rate(own_rate or rate)))
    return devices


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    }
)
@click.option(
    "--rate",
    metavar="RATE",
    help="Limit the rate at which the device sends, for example 10gbit; 'none' removes the limit.",
)
@click.option(
    "--device",
    "specifications",
    metavar="NAME[=ADDRESS[,RATE]]",
    multiple=True,
    help=f"Name of the device. Default: {DEFAULT_NAME}. Repeat the option for several devices.",
)
@click.option("--address", metavar="IP", help="IPv4 address of this host at which peers reach the device.")
@click.option("--netdev", metavar="IF", help="Network interface whose address to use.")
@click.version_option(package_name="mfsd")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(
    rate: str | None,
    specifications: tuple[str, ...],
    address: str | None,
    netdev: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND with a RoCE device that needs no hardware, kernel module or root.

    Programs find the device like any other, in sysfs and through libibverbs. RC queue pairs run over TCP and UD ones
    over UDP between the addresses of the devices; the traffic class of an address is the TOS of the packets to it.
    All programs launched with the same device name in the same network namespace share the device and its rate
    limit. Where a Python package brings a libibverbs of its own, the system's is preloaded (LD_PRELOAD).

    \b
    mfs-soft-roce -- ibv_devinfo
    mfs-soft-roce --rate 1gbit -- ib_write_bw
    mfs-soft-roce --device a=127.0.0.1,1gbit --device b=127.0.0.2 -- ibv_devices
    ip netns exec blue mfs-soft-roce --netdev eth0 -- python3 worker.py

    The exit status is that of COMMAND; 125: mfs-soft-roce itself failed, 126: COMMAND cannot be run, 127: COMMAND
    was not found.
    """
    try:
        drivers = library.provider_prefix()
        devices = parse_devices(specifications, address, netdev, rate)
        runtime = runtime_folder()
        shared = [SharedDevice(device, runtime) for device in devices]
        hide_kernel_devices = namespace.kernel_has_rdma()
        namespace.enter_mount_namespace()
        namespace.lay_devices({device.device.name: device.sysfs for device in shared})
        if hide_kernel_devices:
            namespace.deny_netlink(namespace.NETLINK_RDMA)
    except (DeviceError, library.LibraryError, namespace.NamespaceError) as error:
        click.echo(f"mfs-soft-roce: {error}", err=True)
        sys.exit(125)
    os.environ["RDMAV_DRIVERS"] = drivers
    if bundled.has_copy(command, os.environ):
        os.environ["LD_PRELOAD"] = bundled.preload(os.environ.get("LD_PRELOAD"))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        click.echo(f"mfs-soft-roce: {command[0]}: {error.strerror}", err=True)
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE)


if __name__ == "__main__":
    main()
