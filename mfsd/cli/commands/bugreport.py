"""``mfsctl bugreport``: collects what helps to understand a problem in one archive, without secrets."""

from __future__ import annotations

import io
import os
import platform
import re
import socket
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import click
import msgspec

from mfsd.cli.coordinator_options import coordinator_options
from mfsd.cli.daemon_call import ATTACH_SOCKET, EXIT_REFUSED
from mfsd.cli.message_json import plain
from mfsd.cli.program import daemon_command
from mfsd.node.control import (
    ConfigRequest,
    Request,
    RequestsRequest,
    RulesRequest,
    StatusRequest,
    TraceRequest,
    WhyRequest,
)
from mfsd.node.control_client import Refused, Unreachable, ask

REQUESTS = 1000
ASKED: dict[str, Request] = {
    "status.json": StatusRequest(),
    "rules.json": RulesRequest(),
    "config.json": ConfigRequest(),
    "requests.json": RequestsRequest(limit=REQUESTS, layers=False),
    "trace.json": TraceRequest(),
    "slowest.json": WhyRequest(slowest=True),
}
FILES = (
    "/proc/version",
    "/proc/cmdline",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/net/dev",
    "/etc/os-release",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
)
VARIABLES = re.compile(r"^(MFS|NCCL|MC|UCX|NVSHMEM|LD_PRELOAD|VLLM_|SGLANG_)")
SECRET = re.compile(r"(?i)(key|token|secret|password|passwd|credential|auth|cookie)")
URL_USER = re.compile(r"(\w+://)[^/\s@]+@")
HIDDEN = "(left out)"


@click.command(
    epilog="""\b
Examples:
  mfsctl bugreport
  mfsctl bugreport -o /tmp/report.tar.gz
  sudo mfsctl bugreport --address coord-1:7400   root sees more
"""
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Archive to write. Default: mfs-bugreport-HOST-TIME.tar.gz.",
)
@coordinator_options()
@daemon_command
def bugreport(path: Path, output: Path | None, address: str | None, config_file: Path | None) -> None:
    """Collect the facts that help to understand a problem into one archive.

    The archive has versions, the doctor's findings, the daemon's status, configuration, rules, requests and tasks,
    the leader's status, facts about the system, and variables of libraries that MFS knows. problems.txt names what
    could not be collected. The archive leaves out keys and certificates, values of variables and users in URLs that
    look like secrets, and all contents of transfers, which MFS never sees. Read it before you send it: it names
    hosts, users' programs and requests.
    """
    name = f"mfs-bugreport-{socket.gethostname()}-{time.strftime('%Y%m%d-%H%M%S')}"
    target = output or Path(f"{name}.tar.gz")
    problems: list[str] = []
    try:
        with tarfile.open(target, "w:gz") as archive:
            for file, content in _everything(path, address, config_file, problems):
                _add(archive, f"{name}/{file}", redacted(content))
            _add(archive, f"{name}/problems.txt", "\n".join(problems or ["none"]) + "\n")
        target.chmod(0o600)
    except OSError as error:
        click.echo(f"mfsctl: {target}: {error.strerror}", err=True)
        sys.exit(EXIT_REFUSED)
    click.echo(target)
    for problem in problems:
        click.echo(f"mfsctl: left out: {problem}", err=True)


def redacted(text: str) -> str:
    """Removes users and passwords from URLs."""
    return URL_USER.sub(rf"\1{HIDDEN}@", text)


def variables(environment: dict[str, str]) -> str:
    """Returns NAME=VALUE lines of the variables that affect software known to MFS."""
    return "".join(
        f"{name}={HIDDEN if SECRET.search(name) else value}\n"
        for name, value in sorted(environment.items())
        if VARIABLES.match(name)
    )


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode(errors="replace")
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
    archive.addfile(member, io.BytesIO(data))


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _everything(
    path: Path, address: str | None, config_file: Path | None, problems: list[str]
) -> Iterator[tuple[str, str]]:
    yield "versions.txt", _versions()
    yield "environment.txt", variables(dict(os.environ))
    for file in FILES:
        try:
            yield f"system{file}", Path(file).read_text(errors="replace")
        except OSError as error:
            problems.append(f"{file}: {error.strerror}")
    yield "system/infiniband.txt", _devices()
    for file, request in ASKED.items():
        try:
            yield file, _json(ask(path, request))
        except (Unreachable, Refused) as error:
            problems.append(f"{file}: {error}")
    makers: dict[str, Callable[[], str]] = {
        "doctor.json": lambda: _doctor(path),
        "coordinator.json": lambda: _leader(address, config_file),
    }
    for file, make in makers.items():
        try:
            yield file, make()
        except Exception as error:  # a part that fails must not prevent the others
            problems.append(f"{file}: {error}")


def _versions() -> str:
    names = ("mfsd", "msgspec", "click", "textual", "grpcio", "protobuf", "vllm", "sglang", "mooncake-transfer-engine")
    lines = [f"python {sys.version}", f"platform {platform.platform()}"]
    for name in names:
        try:
            lines.append(f"{name} {version(name)}")
        except Exception:
            continue
    return "\n".join(lines) + "\n"


def _devices(sysfs: Path = Path("/sys/class/infiniband")) -> str:
    lines = []
    for device in sorted(sysfs.glob("*")):
        for file in (
            device / "fw_ver",
            device / "node_guid",
            *device.glob("ports/*/rate"),
            *device.glob("ports/*/state"),
        ):
            try:
                lines.append(f"{file}: {file.read_text().strip()}")
            except OSError:
                continue
    return "\n".join(lines or ["no RDMA device"]) + "\n"


def _doctor(path: Path) -> str:
    from mfsd.fabric.policy import DEFAULT_PROFILE, load_profile
    from mfsd.observe.doctor.examine import examine
    from mfsd.observe.doctor.host import Host

    attach = click.get_current_context().meta[ATTACH_SOCKET]
    return _json(examine(Host(attach.absolute(), path.absolute(), DEFAULT_PROFILE, load_profile(DEFAULT_PROFILE))))


def _leader(address: str | None, config_file: Path | None) -> str:
    from mfsd.cli.cluster import ask_leader, cluster_access

    addresses, tls = cluster_access(address, config_file)
    reply, found = ask_leader(addresses, tls, 0)
    if reply is None:
        raise LookupError("; ".join(found))
    return _json(plain(reply))
