"""MfsConnector around vLLM's Example and NIXL connectors, found by the installed wheel's entry point: make e2e-vllm.

The engines see the wheel alone, not this checkout, and run without mfs-run: vLLM loads the plugin, the plugin attaches.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.ports import free_port
from tests.e2e.cluster import BATCH, PYTHON, ROOT, START_S, Cluster, until
from tests.e2e.model import LAYERS
from tests.e2e.test_vllm import prompt

NIXL = ROOT / "build/e2e-vllm/nixl"
pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-vllm"),
    pytest.mark.timeout(1500),
]


class Engines(Cluster):
    """Engines without RDMA, whose only way to MFS is the wheel in `site`."""

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "PYTHONPATH": os.pathsep.join((str(self.folder / "site"), str(NIXL))),
            "PYTHONSAFEPATH": "1",  # else `-m` puts the folder of the tests first, which is this checkout
            "MFS_SOCKET": str(self.socket),
            "VLLM_LOGGING_CONFIG_PATH": str(self.logging_file()),
            "UCX_TLS": "tcp",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        }

    def start_daemon(self) -> None:
        """The daemon is this checkout's, and needs no coordinator here."""
        log = (self.folder / "mfsd.log").open("wb")
        command = [sys.executable, "-m", "mfsd.cli.daemon", "--socket", str(self.socket)]
        self.daemon = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until(self.answers, "mfsd")

    def stop(self) -> None:
        super().stop()
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.wait()

    def serve_connector(self, name: str, role: str, connector: str, more: dict[str, Any]) -> None:
        inner = {"kv_connector": connector, "kv_connector_extra_config": more}
        transfer = {"kv_connector": "MfsConnector", "kv_role": role, "kv_connector_extra_config": {"inner": inner}}
        self.serve(name, {**transfer, "engine_id": name}, PYTHON)

    def wait(self, *names: str) -> None:
        for name in names:
            until(lambda name=name: self.healthy(name), f"vLLM {name} (see {self.folder})", START_S)

    def batches(self) -> list[tuple[int, int]]:
        """Layers of each batch that was reported, and how many it reached."""
        log = (self.folder / "adapter-all.log").read_text()
        return [(int(layers), int(reached)) for _, layers, reached in BATCH.findall(log)]


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    """A folder with the wheel of this checkout unpacked as pip does it."""
    with tempfile.TemporaryDirectory(prefix="mfs-wheel-") as folder:
        pip = (sys.executable, "-m", "pip")
        build = (*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, str(ROOT))
        subprocess.run(build, check=True)
        (made,) = Path(folder).glob("mfsd-*.whl")
        subprocess.run((*pip, "install", "-q", "--no-deps", "--target", f"{folder}/site", str(made)), check=True)
        yield Path(folder) / "site"


@pytest.fixture
def engines(wheel: Path) -> Iterator[Engines]:
    folder = Path(tempfile.mkdtemp(prefix="mfs-e2e-", dir="/tmp"))
    shutil.copytree(wheel, folder / "site")
    made = Engines(folder, "")
    try:
        made.start_daemon()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder)


def loads_what_it_saved(engines: Engines) -> tuple[list[int], list[int]]:
    """A prompt whose second request loads what the first one saved, and the tokens of both."""
    engines.serve_connector("P", "kv_both", "ExampleConnector", {"shared_storage_path": str(engines.folder / "store")})
    engines.wait("P")
    one = prompt(900, 5)
    wanted = engines.complete("P", one, {}, max_tokens=8)
    assert engines.complete("P", one, {}, max_tokens=8) == wanted
    assert "Inject KV cache of" in (engines.folder / "P.log").read_text()
    return one, wanted


def reads_the_other_ones_cache(engines: Engines) -> None:
    """The decode instance reads the prefill instance's cache by NIXL: that of another prompt gives other tokens."""
    for name in "PD":
        engines.serve_connector(name, "kv_both", "NixlConnector", {})
    engines.wait("P", "D")
    one, other = prompt(900, 5), prompt(900, 6)
    wanted = engines.complete("D", one, {}, max_tokens=8)
    sends = {"do_remote_decode": True, "do_remote_prefill": False}

    def decoded(prefilled: list[int]) -> list[int]:
        reported = engines.answer("P", prefilled, {}, max_tokens=1, kv_transfer_params=sends)["kv_transfer_params"]
        return engines.complete("D", one, {}, max_tokens=8, kv_transfer_params=reported)

    assert decoded(one) == wanted
    assert decoded(other) != wanted


def test_around_the_example_connector(engines: Engines) -> None:
    """Other tokens when what was saved is emptied."""
    one, wanted = loads_what_it_saved(engines)
    empty = (
        "import pathlib, sys, safetensors.torch as s\n"
        "for f in pathlib.Path(sys.argv[1]).rglob('*.safetensors'):\n"
        " s.save_file({k: v * 0 for k, v in s.load_file(f).items()}, f)"
    )
    subprocess.run((PYTHON, "-c", empty, str(engines.folder / "store")), check=True)
    assert engines.complete("P", one, {}, max_tokens=8) != wanted
    assert engines.batches()
    assert set(engines.batches()) == {(LAYERS, LAYERS)}, "every layer boundary of every prefill"
    assert "was not tested" not in (engines.folder / "adapter-all.log").read_text()


def test_around_the_nixl_connector(engines: Engines) -> None:
    reads_the_other_ones_cache(engines)
    assert set(engines.batches()) == {(LAYERS, LAYERS)}, "every layer boundary of every prefill"
    assert "was not tested" not in (engines.folder / "adapter-all.log").read_text()


BROKEN = """

def _broken(name):
    def call(*_, **__):
        raise RuntimeError("broken for the test")

    call.__qualname__ = f"{kind}.{{name}}"
    return call


for _name, _member in list(vars({kind}).items()):
    if callable(_member) and not _name.startswith("_"):
        setattr({kind}, _name, _broken(_name))
"""


def break_mfs(engines: Engines) -> None:
    """Every public method of what the connector calls in vLLM's scheduler and in its worker raises."""
    for file, kind in (("requests.py", "Requests"), ("worker.py", "Steps")):
        source = engines.folder / "site/mooncake_adapter/vllm" / file
        source.write_text(source.read_text() + BROKEN.format(kind=kind))


def assert_logged(engines: Engines, *calls: str) -> None:
    log = (engines.folder / "adapter-all.log").read_text()
    for call in calls:
        assert f"{call} failed (RuntimeError: broken for the test)" in log, call


def test_what_fails_in_mfs_ends_no_step(engines: Engines) -> None:
    break_mfs(engines)
    loads_what_it_saved(engines)
    assert_logged(
        engines, "Requests.arrived", "MfsConnector._step_of", "MfsConnector._begin", "MfsConnector._layer_ended"
    )


def test_what_fails_in_mfs_ends_no_step_of_nixl(engines: Engines) -> None:
    break_mfs(engines)
    reads_the_other_ones_cache(engines)
    assert_logged(engines, "Requests.arrived", "MfsConnector._begin")
