"""What the Helm chart starts: its commands, configuration and probes run as rendered, with only addresses and folders
put in their place."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bench.ports import free_port
from nccl_shim.run import LIBRARY, NIXL_PLUGINS
from tests.support.chart import container, find, render, toml_of
from tests.support.cluster import Process, etcd
from tests.support.debian import program
from tests.support.openai_engine import engines
from tests.support.waiting import eventually

PROGRAMS = Path(sys.executable).parent


def placed(command: list[str], places: dict[str, str]) -> list[str]:
    """The command with `places` put in, and the project's programs by their paths."""
    found = []
    for word in command:
        for name, place in places.items():
            word = word.replace(name, place)
        found.append(word)
    return [str(PROGRAMS / found[0]) if found[0].startswith("mfs") else found[0], *found[1:]]


def probe(spec: dict[str, Any], places: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(placed(spec["exec"]["command"], places), capture_output=True, text=True, timeout=200)


def test_the_daemon_starts_and_answers_its_probes(folder: Path) -> None:
    runtime, metrics = folder / "run", free_port()
    manifests = render(
        {"daemon": {"runtimePath": str(runtime), "metricsPort": metrics}, "coordinator": {"enabled": False}}
    )
    config = folder / "mfsd.toml"
    config.write_text(toml_of(manifests))
    mfsd, places = container(manifests, "DaemonSet", "mfs-daemon"), {"/etc/mfs/mfsd.toml": str(config)}
    assert probe(mfsd["livenessProbe"], places).returncode == 3, "it does not answer yet"
    with Process(*placed(mfsd["command"], places)) as daemon:
        daemon.wait_line("event=ready")
        for name in ("readinessProbe", "livenessProbe"):
            result = probe(mfsd[name], places)
            assert result.returncode == 0, result.stderr
            assert json.loads(result.stdout)["daemon"]["mode"] == "observe"
        assert b"mfs_" in urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=200).read()


def test_metrics_on_the_address_of_the_node(folder: Path) -> None:
    """As with daemon.metricsAddress=podIP; 127.0.0.2 stands for it."""
    metrics = free_port()
    daemon = {"runtimePath": str(folder / "run"), "metricsPort": metrics, "metricsAddress": "podIP"}
    manifests = render({"daemon": daemon, "coordinator": {"enabled": False}})
    config = folder / "mfsd.toml"
    config.write_text(toml_of(manifests))
    places = {"/etc/mfs/mfsd.toml": str(config), "$(POD_IP)": "127.0.0.2"}
    with Process(*placed(container(manifests, "DaemonSet", "mfs-daemon")["command"], places)) as process:
        process.wait_line("event=ready")
        assert b"mfs_" in urllib.request.urlopen(f"http://127.0.0.2:{metrics}/metrics", timeout=200).read()
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=200)


def test_two_coordinators_are_ready_once_one_leads(folder: Path) -> None:
    with etcd(folder) as (endpoint, _):
        first, second = (Replica(folder, endpoint, name) for name in ("a", "b"))
        assert probe(first.spec["readinessProbe"], first.places).returncode != 0, "it does not answer yet"
        with Process(*first.command) as one, Process(*second.command) as two:
            one.wait_line("event=ready")
            two.wait_line("event=ready")
            for replica in (first, second):
                eventually(lambda r=replica: probe(r.spec["readinessProbe"], r.places).returncode == 0, "readiness")
                alive = probe(replica.spec["livenessProbe"], replica.places)
                assert alive.returncode == 0, alive.stderr
            one.process.send_signal(signal.SIGSTOP)
            assert probe(first.spec["livenessProbe"], first.places).returncode != 0, "a stopped one is not alive"
            one.process.send_signal(signal.SIGCONT)


class Replica:
    """One coordinator of the chart's Deployment. Here all pods share one address, so each has ports of its own."""

    def __init__(self, folder: Path, endpoint: str, name: str) -> None:
        self.port, self.web = free_port(), free_port()
        manifests = render(
            {"coordinator": {"port": self.port, "webPort": self.web}, "etcd": {"endpoints": [endpoint]}},
        )
        config = folder / f"{name}.toml"
        config.write_text(toml_of(manifests))
        self.spec = container(manifests, "Deployment", "mfs-coordinator")
        self.places = {"/etc/mfs/mfsd.toml": str(config), "$(POD_IP)": "127.0.0.1"}
        self.command = placed(self.spec["command"], self.places)


def test_the_gateway_is_ready_once_an_engine_answers(folder: Path) -> None:
    """localhost stands for the headless Service."""
    port, picker = free_port(), free_port()
    with engines(1) as (engine,):
        values = {
            "enabled": True,
            "port": port,
            "metricsPort": free_port(),
            "extProc": {"enabled": True, "port": picker},
        }
        manifests = render({"gateway": {**values, "engines": {"selector": {"a": "b"}, "port": engine.port}}})
        (text,) = [m["data"]["gateway.toml"] for m in manifests if "gateway.toml" in m.get("data", {})]
        config = folder / "gateway.toml"
        config.write_text(text.replace("mfs-engines.serving.svc", "localhost"))
        spec = container(manifests, "Deployment", "mfs-gateway")

        def status(name: str) -> int:
            path = spec[name]["httpGet"]["path"]
            try:
                return int(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=200).status)
            except urllib.error.HTTPError as error:
                return error.code

        with Process(*placed(spec["command"], {"/etc/mfs/gateway.toml": str(config)})) as gateway:
            gateway.wait_line("event=ready")
            assert (status("readinessProbe"), status("livenessProbe")) == (200, 200)
            engine.kill()
            eventually(lambda: status("readinessProbe") == 503, "what the engine's end brings about")
            assert status("livenessProbe") == 200


def test_etcd_takes_its_options(folder: Path) -> None:
    spec = container(render({"etcd": {"replicas": 1}}), "StatefulSet", "mfs-etcd")
    ports = {str(number): str(free_port()) for number in (2379, 2380, 2381)}
    places = {
        "$(POD_NAME).mfs-etcd.serving.svc": "127.0.0.1",
        "mfs-etcd-0.mfs-etcd.serving.svc": "127.0.0.1",
        "$(POD_NAME)": "mfs-etcd-0",
        "0.0.0.0": "127.0.0.1",
        "/var/lib/etcd": str(folder),
        **{f":{old}": f":{new}" for old, new in ports.items()},
    }
    health = spec["readinessProbe"]["httpGet"]
    number = next(str(p["containerPort"]) for p in spec["ports"] if p["name"] == health["port"])
    with Process(program("etcd-server", "etcd"), *placed(spec["command"], places)[1:]):

        def healthy() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{ports[number]}{health['path']}", timeout=200) as answer:
                    return bool(json.load(answer)["health"] == "true")
            except OSError:
                return False

        eventually(healthy, "etcd's health")


def test_what_the_pod_brings_is_where_its_variables_say(folder: Path) -> None:
    """The init container's own command, from folders as the image has them."""
    image, pod = folder / "image", folder / "pod"
    image.mkdir()
    pod.mkdir()
    shutil.copy(LIBRARY, image)
    shutil.copytree(NIXL_PLUGINS, image / "nixl_plugins")
    manifests = render({"vllm": {"enabled": True, "nixl": "UCX"}})
    (init,) = find(manifests, "Deployment", "mfs-vllm-prefill")["spec"]["template"]["spec"]["initContainers"]
    subprocess.run(placed(init["command"], {"/opt/mfs": str(image), "/mfs/": f"{pod}/"}), check=True)
    engine = container(manifests, "Deployment", "mfs-vllm-prefill")
    environment = {one["name"]: one.get("value", "").replace("/mfs/", f"{pod}/", 1) for one in engine["env"]}
    assert Path(environment["LD_PRELOAD"]).is_file()
    plugin = Path(environment["NIXL_PLUGIN_DIR"]) / f"libplugin_{environment['MFS_NIXL_BACKEND']}.so"
    assert ctypes.CDLL(str(plugin)).nixl_plugin_init and plugin.with_name("libplugin_MFS.so").is_file()


IN_A_POD = (
    'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && ! touch "$1/x" 2>/dev/null '
    '&& mount -t tmpfs none "$2" && shift 2 && exec "$@"'
)
"""Shell: sees the first folder read-only and not the second, as a pod of the vLLM example does; runs the rest."""


def in_a_pod(runtime: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c"]
    return subprocess.run(
        [*unshare, IN_A_POD, "sh", runtime, f"{runtime}-control", *command], capture_output=True, text=True, timeout=200
    )


def test_root_in_a_pod_attaches_and_cannot_switch_the_node(folder: Path) -> None:
    """What the vLLM example mounts is enough to attach, and all that it mounts."""
    pod = find(render({"vllm": {"enabled": True}}), "Deployment", "mfs-vllm-decode")["spec"]["template"]["spec"]
    assert [v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v] == ["/run/mfs"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "mfsd"]
    assert mount["readOnly"] is True
    config, runtime = folder / "mfsd.toml", folder / "run"
    socket = runtime / "mfsd.sock"
    config.write_text("")
    attach = "import sys; from mfsd._native import Client; Client.attach(sys.argv[1], timeout_ms=100_000).detach()"
    with Process(PROGRAMS / "mfsd", "--config", config, "--socket", socket) as daemon:
        daemon.wait_line("event=ready")
        attached = in_a_pod(runtime, sys.executable, "-c", attach, socket)
        switched = in_a_pod(runtime, PROGRAMS / "mfsctl", "--socket", socket, "mode", "observe")
        status = subprocess.run(
            [PROGRAMS / "mfsctl", "--socket", socket, "status", "--json"], capture_output=True, text=True, timeout=200
        )
        doctor = in_a_pod(runtime, PROGRAMS / "mfsctl", "--socket", socket, "doctor", "--json")
    assert attached.returncode == 0, attached.stderr
    assert switched.returncode == 3 and "no mfsd at" in switched.stderr, switched.stderr
    assert json.loads(status.stdout)["daemon"]["mode"] == "enforce", "and nothing has changed"
    assert "daemon.control-out-of-reach" in {f["id"] for f in json.loads(doctor.stdout)["findings"]}
