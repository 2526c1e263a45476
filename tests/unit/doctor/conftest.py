"""A host whose /proc, /sys and /dev are folders of the test, and a DCB device."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mfsd.fabric.policy import load_profile
from mfsd.observe.doctor.checks import CHECKS, Check, kinds_of, name_of
from mfsd.observe.doctor.finding import Finding
from mfsd.observe.doctor.host import Host, NoAnswer
from mfsd.observe.doctor.launching import Answer
from mfsd.verbs.ask import Devices, Message, VerbsMissing


def dcb_device() -> Any:
    """The device that the tests of `mfsctl host` use."""
    path = Path(__file__).parents[1] / "fabric/conftest.py"
    spec = importlib.util.spec_from_file_location("dcb_device_of_fabric", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.DcbDevice()


class FakeHost:
    """A made-up host, and what one check finds there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dcb = dcb_device()
        self.lldp: str | None = None
        self.devinfo: str | None = None
        self.verbs: Devices | Exception = VerbsMissing("no pyverbs here")
        self.packages: dict[str, str] | None = None
        """What the probe finds; None: it is really asked."""
        self.message: Callable[[str, int, int, int], Message] = lambda *_: Message(4096, None)
        for name in ("proc", "sys/class/net", "dev/shm", "config"):
            (folder / name).mkdir(parents=True)
        self.host = Host(
            folder / "mfsd.sock",
            folder / "mfsd.sock",
            "rocev2-2-lossless",
            load_profile("rocev2-2-lossless"),
            environ={},
            root=folder,
            proc=folder / "proc",
            sys=folder / "sys",
            dev=folder / "dev",
            configfs=folder / "config",
            exchange=self.dcb.exchange,
            run=self._run,
            verbs=self._verbs,
            verbs_message=lambda *asked: self.message(*asked),
        )

    def _verbs(self) -> Devices:
        if isinstance(self.verbs, Exception):
            raise self.verbs
        return self.verbs

    def _run(self, argv: list[str]) -> str:
        answer = {"lldpctl": self.lldp, "ibv_devinfo": self.devinfo}[argv[0]]
        if answer is None:
            raise NoAnswer(f"{argv[0]} is not installed")
        return answer

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def device(self, name: str = "mlx5_0", link: str = "eth0", mtu: int = 4200, **changes: str) -> None:
        """An RDMA device with one RoCE port; ``changes`` replace files of the port."""
        files = {"state": "4: ACTIVE", "link_layer": "Ethernet", "gids/0": "fe80::1", "gid_attrs/types/0": "IB/RoCE v1"}
        files |= {"gids/3": "::ffff:10.0.0.1", "gid_attrs/types/3": "RoCE v2", "gid_attrs/ndevs/3": link}
        for path, text in (files | {k.replace("__", "/"): v for k, v in changes.items()}).items():
            self.write(f"sys/class/infiniband/{name}/ports/1/{path}", text)
        self.write("sys/class/infiniband_verbs/uverbs0/ibdev", name)
        self.write("dev/infiniband/uverbs0", "")
        self.write(f"sys/class/net/{link}/mtu", str(mtu))

    def __call__(self, check: Check) -> dict[str, Finding]:
        """Findings by id. Each must be one that the check documents, with a reason, and a remedy if it is bad news."""
        self.host.__dict__.pop("devices", None)
        self.host.__dict__.pop("verbs_devices", None)
        self.host.__dict__.pop("links", None)
        self.host.__dict__.pop("program_environ", None)
        self.host.__dict__.pop("environ_problem", None)
        self.host.probed.clear()
        if self.packages is not None:
            self.host.probed[()] = Answer(self.packages, {}, "3", [])
        known = {k.id: k for k in kinds_of(check)}
        found = list(check.run(self.host))
        for f in found:
            assert f.id in known and f.check == name_of(check) and f.severity == known[f.id].severity
            assert f.reason and (f.remedy or f.severity in ("ok", "info"))
        return {f.id: f for f in found}


@pytest.fixture
def doctor(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.fixture
def checks() -> Callable[[str], Check]:
    return {name_of(check): check for check in CHECKS}.__getitem__
