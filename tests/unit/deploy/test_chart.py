"""The Helm chart: helm renders it, Kubernetes' published schemas accept it, and mfsd reads its configuration."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from mfsd import _native
from mfsd.cli.commands.host import pasted
from mfsd.fabric.libraries import LIBRARIES, variables
from mfsd.fabric.policy import load_profile, load_profiles, shipped_policy
from mfsd.node.config import Config
from mfsd.node.config_file import control_path, parse
from mfsd.node.memory import bytes_for
from mfsd.node.schema import keys, struct_of
from mfsd.serve.gateway.settings import GatewaySettings, read_file
from mfsd.serve.settings import Tier
from nccl_shim.run import NIXL_PLUGINS, nixl_environment
from tests.support.chart import CHART, HELM, Manifest, container, find, helm, refusal, render, toml_of
from tests.unit.deploy import profiles

KUBERNETES = ("1.25", "1.31", "1.37")
"""The oldest that the chart allows, one between, and the newest with published schemas."""
TLS = {"daemon": {"tls": {"secretName": "mfs-node"}}, "coordinator": {"tls": {"secretName": "mfs-coordinator"}}}
OPEN = {"daemon": {"metricsAddress": "podIP"}, "coordinator": {"webAddress": "0.0.0.0"}}
OPEN_GATEWAY = {"metricsAddress": "0.0.0.0"}
LABELS = {"app": "vllm"}
PICKER = {"enabled": True, "tls": {"secretName": "mfs-picker"}}
GATEWAY: dict[str, Any] = {
    "enabled": True,
    "engines": {"selector": LABELS, "port": 8001},
    "extProc": PICKER,
    "inferencePool": {"enabled": True},
    "config": {
        "route": {"router": "sticky", "locality_tokens": 100},
        "admission": {"requests_max": {"batch": 4}},
        "tiers": {"chat": {"ttft_ms": 500, "importance": 1}, "batch": {}},
    },
}
PREDICTIONS: dict[str, Any] = {
    "claim": "predictions",
    "config": {"predict": {"record": "/var/lib/mfs/requests.jsonl", "model": "/var/lib/mfs/lengths.json"}},
}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        **{
            part: {**TLS[part], **OPEN[part], "nodeSelector": {"pool": "gpu"}, "tolerations": [{"operator": "Exists"}]}
            for part in TLS
        },
        "imagePullSecrets": [{"name": "pull"}],
        "networkPolicy": {"nodeCIDRs": ["10.0.0.0/16", "fd00::/8"]},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "vllm": {"enabled": True, "nodeSelector": {"pool": "gpu"}, "nixl": "UCX"},
        "config": {"wire": {"profile": "paper-k8"}},
        "etcd": {"storageClassName": "fast"},
        "gateway": {
            **GATEWAY,
            **OPEN_GATEWAY,
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"operator": "Exists"}],
        },
    },
    "etcd-of-ones-own": {"etcd": {"endpoints": ["etcd-1.db:2379", "etcd-2.db:2390"], "tls": {"secretName": "etcd"}}},
    "certificates-of-nodes": {**TLS, "daemon": {"tls": {"hostPath": "/etc/mfs/pki"}}},
    "predictions": {"gateway": {**GATEWAY, **PREDICTIONS}},
    "tiers-of-engines": {"vllm": {"enabled": True}, "daemon": {"engineStatusPath": "/run/mfs-engines"}},
    "one-coordinator": {"coordinator": {"replicas": 1}, "etcd": {"enabled": False}},
    "nodes-only": {"coordinator": {"enabled": False}, "networkPolicy": {"enabled": False}},
}


@pytest.fixture(params=CASES)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(CASES[request.param])


def test_helm_lint_finds_nothing() -> None:
    result = helm("lint", "--strict", CHART)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[WARNING]" not in result.stdout and "[ERROR]" not in result.stdout, result.stdout


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """Else the definitions, megabytes of JSON, are read again for every manifest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", cache(kubernetes_validate.utils.schema_contents))
        yield


@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_published_schemas_accept_every_manifest(manifests: list[Manifest], kubernetes: str) -> None:
    for manifest in manifests:
        if manifest["kind"] in ("PodMonitor", "InferencePool"):
            continue  # of the operator and of the inference extension, not Kubernetes' own
        kubernetes_validate.validate(manifest, kubernetes, strict=True)


def test_the_schemas_would_refuse_a_typing_error() -> None:
    daemons = find(render(), "DaemonSet", "mfs-daemon")
    daemons["spec"]["template"]["spec"]["hostNetworks"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemons, KUBERNETES[0], strict=True)


def test_names_are_unique_and_every_object_is_in_the_namespace(manifests: list[Manifest]) -> None:
    named = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(set(named)) == len(named)
    assert {m["metadata"]["namespace"] for m in manifests} == {"serving"}


def test_whatever_is_mounted_is_there(manifests: list[Manifest]) -> None:
    accounts = {m["metadata"]["name"] for m in manifests if m["kind"] == "ServiceAccount"}
    configs = {m["metadata"]["name"] for m in manifests if m["kind"] == "ConfigMap"}
    for manifest in manifests:
        pod = manifest["spec"].get("template", {}).get("spec") if "spec" in manifest else None
        if pod is None:
            continue
        volumes = {v["name"] for v in pod.get("volumes", [])}
        volumes |= {c["metadata"]["name"] for c in manifest["spec"].get("volumeClaimTemplates", [])}
        for c in [*pod["containers"], *pod.get("initContainers", [])]:
            assert {m["name"] for m in c.get("volumeMounts", [])} <= volumes
            paths = [m["mountPath"] for m in c.get("volumeMounts", [])]
            assert not [a for a in paths for b in paths if a != b and a.startswith(f"{b}/")], "mounts inside mounts"
        assert {v["configMap"]["name"] for v in pod.get("volumes", []) if "configMap" in v} <= configs
        assert pod.get("serviceAccountName") in {*accounts, None}
        assert pod["automountServiceAccountToken"] is False
        assert (
            manifest["spec"]["selector"]["matchLabels"].items()
            <= manifest["spec"]["template"]["metadata"]["labels"].items()
        )


def test_mfsd_reads_the_configuration(manifests: list[Manifest], tmp_path: Path) -> None:
    file = tmp_path / "mfsd.toml"
    file.write_text(toml_of(manifests))
    result = subprocess.run(
        [sys.executable, "-m", "mfsd.cli.daemon", "--check-config", "--config", file], capture_output=True, text=True
    )
    # Certificates lie in the pods, not here; everything else is checked.
    others = [line for line in result.stderr.splitlines() if "cannot be read: No such file" not in line]
    assert others == [] and result.returncode in (0, 2), result.stderr
    assert parse(file.read_text(), "mfsd.toml").mode == "observe"


def test_every_kind_of_value_arrives_as_it_was_written() -> None:
    config = {
        "mode": "enforce",
        "log_level": "warning",
        "socket": {"mode": "0666", "allowed_gids": [1000], "clients_per_uid": 64},
        "arbiter": {"window": "100us", "tasks_max": 1_048_576},
        "policy": {"classes": 4, "drop_budget": 0.125, "promotion_interval": "10ms"},
        "wire": {"profile": "rocev2-lossy-ecn"},
        "nic": {"mlx5_0": {"rate": "200gbit", "address": "10.1.0.7"}, "mlx5.1": {"rate": "100gbit"}},
        "rule": [
            {"process": 'a "quoted" <name> & more', "action": "hold", "stage": "p2d", "class": 3},
            {"peer": "10.9.0.0/16", "action": "pass"},
        ],
        "cluster": {"unit": "prefill-0"},
        "coordinator": {"grace": "2s"},
    }
    read = parse(toml_of(render({"config": config})), "mfsd.toml")
    assert (read.mode, read.log_level, read.socket.mode, read.socket.allowed_gids) == (
        "enforce",
        "warning",
        0o666,
        [1000],
    )
    assert (read.arbiter.window_ns, read.arbiter.tasks_max) == (100_000, 1_048_576)
    assert (read.policy.classes, read.policy.drop_budget, read.policy.promotion_interval_ns) == (4, 0.125, 10_000_000)
    assert read.wire.profile == "rocev2-lossy-ecn"
    assert sorted(read.nic) == ["mlx5.1", "mlx5_0"] and read.nic["mlx5_0"].rate_bytes_per_s == 25 * 10**9
    assert [(r.process, r.action) for r in read.rule] == [('a "quoted" <name> & more', "hold"), ("", "pass")]
    assert read.cluster.unit == "prefill-0" and read.cluster.coordinators == ["mfs-coordinator.serving.svc:7400"]
    assert read.coordinator.grace_ns == 2_000_000_000 and len(read.coordinator.etcd) == 3


def test_a_policy_file_is_mounted_beside_the_configuration_and_read(tmp_path: Path) -> None:
    values = {"fabricPolicy": shipped_policy(), "config": {"wire": {"profile": "paper-k8"}}}
    manifests = render(values=values)
    (config,) = [m["data"] for m in manifests if m["kind"] == "ConfigMap" and "mfsd.toml" in m["data"]]
    read = parse(config["mfsd.toml"], "mfsd.toml")
    assert (read.wire.profile, read.wire.policy_file) == ("paper-k8", "/etc/mfs/policy.toml")
    (tmp_path / "policy.toml").write_text(config["policy.toml"])
    assert load_profiles(tmp_path / "policy.toml") == load_profiles()

    def restarts(policy: str) -> str:
        (daemon,) = [m for m in render(values={**values, "fabricPolicy": policy}) if m["kind"] == "DaemonSet"]
        return str(daemon["spec"]["template"]["metadata"]["annotations"])

    assert restarts(shipped_policy()) != restarts(shipped_policy() + "# another one\n")
    assert "config.wire.profile" in refusal({"fabricPolicy": shipped_policy()})


def test_the_configuration_names_the_objects_that_are_there() -> None:
    manifests = render(release="green", values=TLS)
    read = parse(toml_of(manifests), "mfsd.toml")
    host, _, port = read.cluster.coordinators[0].rpartition(":")
    service = find(manifests, "Service", host.split(".")[0])
    assert host == f"{service['metadata']['name']}.serving.svc" == read.cluster.server_name
    assert int(port) in [p["port"] for p in service["spec"]["ports"]]
    members = find(manifests, "StatefulSet", "green-mfs-etcd")
    assert read.coordinator.etcd == [
        f"{members['metadata']['name']}-{n}.{members['spec']['serviceName']}.serving.svc:2379" for n in range(3)
    ]
    for kind, name, files in (
        ("DaemonSet", "green-mfs-daemon", read.cluster),
        ("Deployment", "green-mfs-coordinator", read.coordinator),
    ):
        mounts = [m["mountPath"] for m in container(manifests, kind, name)["volumeMounts"]]
        assert {str(Path(f).parent) for f in (files.ca, files.certificate, files.key)} <= set(mounts)


def test_each_node_may_have_a_certificate_of_its_own() -> None:
    manifests = render(CASES["certificates-of-nodes"])
    (volume,) = [
        v
        for v in find(manifests, "DaemonSet", "mfs-daemon")["spec"]["template"]["spec"]["volumes"]
        if v["name"] == "tls"
    ]
    (mount,) = [m for m in container(manifests, "DaemonSet", "mfs-daemon")["volumeMounts"] if m["name"] == "tls"]
    assert volume["hostPath"]["path"] == "/etc/mfs/pki" and mount["readOnly"] is True
    assert str(Path(parse(toml_of(manifests), "mfsd.toml").cluster.certificate).parent) == mount["mountPath"]


def test_the_daemon_has_few_rights_and_coordinators_none() -> None:
    manifests = render()
    daemon = container(manifests, "DaemonSet", "mfs-daemon")["securityContext"]
    assert daemon["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}
    assert daemon["allowPrivilegeEscalation"] is False and daemon["readOnlyRootFilesystem"] is True
    grouped = render({"config": {"socket": {"group": 1000}}})
    assert container(grouped, "DaemonSet", "mfs-daemon")["securityContext"]["capabilities"]["add"] == [
        "SYS_NICE",
        "CHOWN",
    ]
    for kind, name in (("Deployment", "mfs-coordinator"), ("StatefulSet", "mfs-etcd")):
        pod = find(manifests, kind, name)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not {"hostNetwork", "hostPID"} & set(pod)


@pytest.mark.parametrize("clients", [None, 16, 256, 1024])
def test_all_clients_fit_into_the_memory_of_the_daemon(clients: int | None) -> None:
    manifests = render({"config": {"socket": {"clients_max": clients}}} if clients else {})
    most = parse(toml_of(manifests), "mfsd.toml").socket.clients_max
    assert most == (clients or 256)
    limit = container(manifests, "DaemonSet", "mfs-daemon")["resources"]["limits"]["memory"]
    mib = int(limit.removesuffix("Mi"))
    assert most * _native.SEGMENT_BYTES < (mib << 20), "the segments alone"
    assert mib << 20 == bytes_for(most), "what the daemon reckons with"


def test_a_memory_limit_of_ones_own_stays() -> None:
    resources = {"limits": {"memory": "256Mi", "cpu": 2}}
    found = container(render({"daemon": {"resources": resources}}), "DaemonSet", "mfs-daemon")["resources"]
    assert found["limits"] == resources["limits"] and found["requests"]["memory"] == "64Mi"


def test_only_the_daemon_mounts_the_control_socket() -> None:
    manifests = render({"vllm": {"enabled": True}, "daemon": {"runtimePath": "/var/run/flows"}})
    control = str(control_path(parse(toml_of(manifests), "mfsd.toml").socket).parent)
    mounting = [
        m["metadata"]["name"]
        for m in manifests
        for v in m.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", [])
        if control.startswith(v.get("hostPath", {}).get("path", "/none"))
        and (control + "/").startswith(v["hostPath"]["path"] + "/")
    ]
    assert mounting == ["mfs-daemon"]


def test_metrics_and_page_are_on_loopback_unless_asked_for() -> None:
    manifests = render()
    read = parse(toml_of(manifests), "mfsd.toml")
    assert (read.metrics.listen, read.coordinator.web) == ("127.0.0.1:9464", "127.0.0.1:7480")
    assert "ports" not in container(manifests, "DaemonSet", "mfs-daemon")
    assert [p["name"] for p in find(manifests, "Service", "mfs-coordinator")["spec"]["ports"]] == ["grpc"]
    assert [p["name"] for p in container(manifests, "Deployment", "mfs-coordinator")["ports"]] == ["grpc"]
    manifests = render(OPEN)
    assert parse(toml_of(manifests), "mfsd.toml").metrics.listen is None, "the command line says it, by node"
    daemon = container(manifests, "DaemonSet", "mfs-daemon")
    assert daemon["command"][-2:] == ["--metrics-listen", "$(POD_IP):9464"]
    assert daemon["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert [p["name"] for p in find(manifests, "Service", "mfs-coordinator")["spec"]["ports"]] == ["grpc", "web"]


def test_nothing_asks_the_kubernetes_api(manifests: list[Manifest]) -> None:
    assert not {m["kind"] for m in manifests} & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}


def test_one_daemon_a_socket_and_coordinators_survive_a_drain() -> None:
    manifests = render()
    update = find(manifests, "DaemonSet", "mfs-daemon")["spec"]["updateStrategy"]["rollingUpdate"]
    assert update["maxSurge"] == 0
    for name in ("mfs-coordinator", "mfs-etcd"):
        assert find(manifests, "PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1


def test_policies_let_in_nodes_and_nothing_else() -> None:
    manifests = render({"networkPolicy": {"nodeCIDRs": ["10.0.0.0/16"]}})
    (ingress,) = find(manifests, "NetworkPolicy", "mfs-coordinator")["spec"]["ingress"]
    assert [p["port"] for p in ingress["ports"]] == [7400]
    assert {"ipBlock": {"cidr": "10.0.0.0/16"}} in ingress["from"]
    inside = find(manifests, "NetworkPolicy", "mfs-etcd")["spec"]["ingress"]
    parts = {f["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for rule in inside for f in rule["from"]}
    assert parts == {"coordinator", "etcd"}


def test_policies_let_readers_of_an_open_page_in() -> None:
    """Routers, gateways and Prometheus among them."""
    manifests = render({"networkPolicy": {"nodeCIDRs": ["10.0.0.0/16"]}, **OPEN})
    _, web = find(manifests, "NetworkPolicy", "mfs-coordinator")["spec"]["ingress"]
    assert web == {"ports": [{"port": 7480, "protocol": "TCP"}]}


def test_the_pod_monitor_calls_the_job_as_the_alerts_do() -> None:
    manifests = render({"podMonitor": {"enabled": True}, **OPEN})
    (monitor,) = [m for m in manifests if m["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [p["name"] for p in container(manifests, "DaemonSet", "mfs-daemon")["ports"]]
    assert {"targetLabel": "job", "replacement": "mfsd"} in endpoint["relabelings"]
    assert 'job="mfsd"' in (CHART.parents[1] / "prometheus" / "mfs.rules.yml").read_text()


def test_gateways_have_a_pod_monitor_of_their_own() -> None:
    gateway = {"enabled": True, "engines": {"selector": {"app": "vllm"}}, **OPEN_GATEWAY}
    manifests = render({"podMonitor": {"enabled": True}, "gateway": gateway, **OPEN})
    monitor = find(manifests, "PodMonitor", "mfs-gateway")
    deployment = find(manifests, "Deployment", "mfs-gateway")
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    assert chosen <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert not chosen <= find(manifests, "DaemonSet", "mfs-daemon")["spec"]["template"]["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [p["name"] for p in container(manifests, "Deployment", "mfs-gateway")["ports"]]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "mfs-gateway"}]
    assert "job_name: mfs-gateway" in (CHART.parents[1] / "prometheus" / "prometheus.yml").read_text()


def test_a_gateway_that_predicts_has_its_files_on_a_volume_and_writes_them_alone() -> None:
    deployment = find(render({"gateway": {**GATEWAY, **PREDICTIONS}}), "Deployment", "mfs-gateway")["spec"]
    pod = deployment["template"]["spec"]
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "files"]
    assert mount["mountPath"] == "/var/lib/mfs" and not mount.get("readOnly")
    assert {"name": "files", "persistentVolumeClaim": {"claimName": "predictions"}} in pod["volumes"]
    assert deployment["strategy"]["rollingUpdate"]["maxSurge"] == 0
    plain = find(render({"gateway": GATEWAY}), "Deployment", "mfs-gateway")["spec"]
    assert plain["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def vllm_environment(vllm: dict[str, Any], part: str = "prefill", **others: Any) -> dict[str, str]:
    """The container's variables, none of which stands there twice."""
    manifests = render({"vllm": {"enabled": True, **vllm}, **others})
    found = container(manifests, "Deployment", f"mfs-vllm-{part}")["env"]
    assert len({one["name"] for one in found}) == len(found)
    return {one["name"]: one.get("value", str(one.get("valueFrom"))) for one in found}


def of_profile(name: str) -> dict[str, Any]:
    return {"config": {"wire": {"profile": name}}}


def test_the_charts_profiles_are_those_of_the_code() -> None:
    kept = {file.name: file.read_text() for file in profiles.FOLDER.iterdir()}
    assert kept == profiles.texts(), "run: python -m tests.unit.deploy.profiles"


@pytest.mark.parametrize("name", load_profiles())
def test_vllm_gets_the_classes_of_the_profile_that_packets_are_marked_by(name: str) -> None:
    for part in ("prefill", "decode"):
        environment = vllm_environment({}, part, **of_profile(name))
        wanted = {v.name: v.value for v in variables(load_profile(name))}
        assert wanted.items() <= environment.items() and "LD_PRELOAD" in environment
        assert environment["MFS_SET_CLASSES"].split() == list(wanted)


def test_on_infiniband_vllm_gets_levels_and_no_class() -> None:
    environment = vllm_environment({"infiniband": True}, **of_profile("paper-k8"))
    wanted = {v.name: v.value for v in variables(load_profile("paper-k8"), infiniband=True)}
    assert wanted.items() <= environment.items() and environment["MFS_SERVICE_LEVELS"].startswith("56:7,")
    assert not {one.traffic_class for one in LIBRARIES} & set(environment), "NVSHMEM's is dangerous there"


def test_the_chart_sets_no_class_over_one_that_is_named() -> None:
    env = [{"name": "NCCL_IB_TC", "value": "104"}, {"name": "UCX_IB_TRAFFIC_CLASS", "value": ""}]
    environment = vllm_environment({"env": env}, **of_profile("paper-k8"))
    assert (environment["NCCL_IB_TC"], environment["UCX_IB_TRAFFIC_CLASS"]) == ("104", "")
    assert "NCCL_GIN_IB_TC" not in environment, "GIN goes by NCCL's"
    assert not {"NCCL_IB_TC", "NCCL_GIN_IB_TC", "UCX_IB_TRAFFIC_CLASS"} & set(environment["MFS_SET_CLASSES"].split())
    printed = {v.name: v.value for v in variables(load_profile("rocev2-lossy-ecn"))} | {"MFS_SET_CLASSES": "UCX_IB_SL"}
    given = yaml.safe_load(pasted(printed, "kubernetes"))
    assert printed.items() <= vllm_environment({"env": given}, **of_profile("paper-k8")).items()


@pytest.mark.parametrize("others", [{}, {**of_profile("paper-k8"), "fabricPolicy": shipped_policy()}])
def test_without_a_shipped_profile_the_chart_sets_no_class(others: dict[str, Any]) -> None:
    names = {*(one.traffic_class for one in LIBRARIES), "MFS_SET_CLASSES"}
    assert not names & set(vllm_environment({}, **others)), "the text of a policy is not the chart's to read"


def connector(vllm: dict[str, Any]) -> str:
    engine = container(render({"vllm": {"enabled": True, **vllm}}), "Deployment", "mfs-vllm-prefill")
    (transfer,) = [word for word in engine["args"] if word.startswith("--kv-transfer-config=")]
    return str(json.loads(transfer.partition("=")[2])["kv_connector"])


def test_vllm_moves_kv_by_nixl_as_mfs_run_would_have_it() -> None:
    names = {"MFS_NIXL", "NIXL_PLUGIN_DIR", "MFS_NIXL_BACKEND", "VLLM_NIXL_SIDE_CHANNEL_HOST"}
    for off in ({}, {"nixl": "off"}, {"nixl": False}):
        assert not names & set(vllm_environment(off)) and connector(off) == "MooncakeConnector"
    adapted = vllm_environment({"nixl": "adapter"})
    assert (adapted["MFS_NIXL"], adapted["MFS_MODE"]) == ("1", "enforce"), "without a mode the wheel does nothing"
    assert not {"NIXL_PLUGIN_DIR", "MFS_NIXL_BACKEND"} & set(adapted)
    assert "status.podIP" in adapted["VLLM_NIXL_SIDE_CHANNEL_HOST"] and connector({"nixl": "UCX"}) == "NixlConnector"
    plugged = vllm_environment({"nixl": "UCX"})
    by_mfs_run = nixl_environment("UCX", "enforce", {})
    assert {name: plugged[name] for name in by_mfs_run} == by_mfs_run | {"NIXL_PLUGIN_DIR": "/mfs/nixl_plugins"}
    assert "MFS_NIXL" not in plugged
    named = vllm_environment({"nixl": "adapter", "env": [{"name": "MFS_NIXL", "value": "0"}]})
    assert named["MFS_NIXL"] == "0"


def test_the_backends_of_nixl_are_those_that_are_built() -> None:
    known = json.loads((CHART / "values.schema.json").read_text())["properties"]["vllm"]["properties"]["nixl"]["enum"]
    built = {path.stem.removeprefix("libplugin_") for path in NIXL_PLUGINS.glob("libplugin_*.so")}
    assert set(known) - {False, "off", "adapter"} == built - {"MFS"}


def test_vllm_finds_library_and_daemon() -> None:
    manifests = render({"vllm": {"enabled": True}, "daemon": {"runtimePath": "/var/run/flows"}})
    for part, role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        engine = container(manifests, "Deployment", f"mfs-vllm-{part}")
        environment = {e["name"]: e["value"] for e in engine["env"]}
        mounts = [m["mountPath"] for m in engine["volumeMounts"]]
        assert str(Path(environment["LD_PRELOAD"]).parent) in mounts
        assert str(Path(environment["MFS_SOCKET"]).parent) in mounts
        assert environment["MFS_SOCKET"] == parse(toml_of(manifests), "mfsd.toml").socket.path
        (transfer,) = [a for a in engine["args"] if a.startswith("--kv-transfer-config=")]
        assert json.loads(transfer.partition("=")[2])["kv_role"] == role


def test_the_daemon_reads_where_engines_write() -> None:
    folder = "/run/mfs-engines"
    manifests = render({"vllm": {"enabled": True}, "daemon": {"engineStatusPath": folder}})
    assert parse(toml_of(manifests), "mfsd.toml").cluster.serve_status == [folder]
    reader = container(manifests, "DaemonSet", "mfs-daemon")
    assert [m["readOnly"] for m in reader["volumeMounts"] if m["mountPath"] == folder] == [True]
    for part in ("prefill", "decode"):
        engine = container(manifests, "Deployment", f"mfs-vllm-{part}")
        assert {"name": "MFS_SERVE_STATUS", "value": folder} in engine["env"]
        assert [m.get("readOnly", False) for m in engine["volumeMounts"] if m["mountPath"] == folder] == [False]


def test_no_folder_of_the_host_is_writable_for_engines_unless_asked_for() -> None:
    manifests = render({"vllm": {"enabled": True}})
    assert parse(toml_of(manifests), "mfsd.toml").cluster.serve_status == []
    for name in ("mfs-vllm-prefill", "mfs-vllm-decode"):
        pod = find(manifests, "Deployment", name)["spec"]["template"]["spec"]
        of_host = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
        mounts = pod["containers"][0]["volumeMounts"]
        assert of_host and all(mount.get("readOnly") for mount in mounts if mount["name"] in of_host)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"config": {"mode": "watch"}}, "config.mode"),
        ({"vllm": {"nixl": "CARRIER_PIGEON"}}, "vllm.nixl"),
        ({"vllm": {"nixl": "UCX", "env": [{"name": "NIXL_PLUGIN_DIR"}]}}, "name that folder in MFS_NIXL_PLUGIN_DIR"),
        ({"config": {"arbiter": {"windw": "1ms"}}}, "Additional property windw is not allowed"),
        ({"daemon": {"runtimePath": "run"}}, "daemon.runtimePath"),
        ({"daemon": {"metricsAddress": ""}}, "daemon.metricsAddress"),
        ({"coordinator": {"webAddress": "podIP"}}, "coordinator.webAddress"),
        ({"podMonitor": {"enabled": True}}, "set daemon.metricsAddress=podIP"),
        ({"etcd": {"endpoints": ["http://etcd:2379"]}}, "etcd.endpoints.0"),
        ({"etcd": {"replicas": 2}}, "etcd.replicas"),
        ({"deamon": {}}, "Additional property deamon is not allowed"),
        ({"config": {"socket": {"path": "/x"}}}, "set daemon.runtimePath"),
        ({"config": {"socket": {"control": "/x"}}}, "set daemon.runtimePath"),
        ({"config": {"cluster": {"serve_status": ["/x"]}}}, "set daemon.engineStatusPath"),
        ({"config": {"socket": {"group": "llm"}}}, "config.socket.group = llm: use the group's number"),
        ({"daemon": {"engineStatusPath": "run"}}, "daemon.engineStatusPath"),
        ({"daemon": {"engineStatusPath": "/run/mfs-control"}}, "name a folder of its own"),
        ({"etcd": {"enabled": False}}, "coordinator.replicas = 2"),
        ({"coordinator": {"tls": {"secretName": "x"}}}, "set both, or none of them"),
        ({**TLS, "daemon": {"tls": {"secretName": "x", "hostPath": "/x"}}}, "not both"),
        ({"etcd": {"tls": {"secretName": "x"}}}, "set etcd.endpoints, too"),
        ({"gateway": {"enabled": True}}, "gateway.engines.selector (labels of their pods), or gateway.config.replicas"),
        ({"gateway": {**GATEWAY, "config": {"replicas": [{"url": "http://10.0.0.1:1"}]}}}, "not both"),
        ({"gateway": {**GATEWAY, "config": {"listen": "[::]:1"}}}, "set gateway.port"),
        ({"gateway": {**GATEWAY, "config": {"ext_proc": {}}}}, "set gateway.extProc"),
        ({"gateway": {**GATEWAY, "config": {"metrics": {}}}}, "set gateway.metricsAddress and gateway.metricsPort"),
        ({"podMonitor": {"enabled": True}, **OPEN, "gateway": GATEWAY}, "set gateway.metricsAddress=0.0.0.0"),
        ({"gateway": {"metricsAddress": "0.0.0.0:1"}}, "gateway.metricsAddress"),
        ({"gateway": {**GATEWAY, "config": {"routes": {}}}}, "Additional property routes is not allowed"),
        ({"gateway": {**GATEWAY, **PREDICTIONS, "claim": ""}}, "set gateway.claim, a PersistentVolumeClaim"),
        ({"gateway": {**GATEWAY, **PREDICTIONS, "replicas": 2}}, "gateway.replicas = 2: each would write"),
        ({"gateway": {**GATEWAY, "extProc": {}}}, "set gateway.extProc.enabled=true, which the pool asks"),
        ({"gateway": {**GATEWAY, "inferencePool": {"failureMode": "Open"}}}, "failureMode"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_refused_by_its_name(values: dict[str, Any], message: str) -> None:
    assert message in refusal(values)


def test_the_schema_knows_the_keys_of_the_configuration() -> None:
    """What helm refuses as a typing error is what mfsd would refuse, too; and nothing else."""
    tables = json.loads((CHART / "values.schema.json").read_text())["properties"]["config"]["properties"]
    assert list(tables) == [key.name for key in keys(Config)]
    for key in keys(Config):
        if (inner := struct_of(key.type)) is not None:
            fields = tables[key.name]
            fields = {"nic": fields.get("additionalProperties"), "rule": fields.get("items")}.get(key.name, fields)
            assert list(fields["properties"]) == [k.name for k in keys(inner)], key.name
            assert fields["additionalProperties"] is False


def test_the_schema_knows_the_keys_of_the_gateways_configuration() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["gateway"]["properties"]
    tables = schema["config"]["properties"]
    assert list(tables) == [key.name for key in keys(GatewaySettings)]
    for key in keys(GatewaySettings):
        inner = Tier if key.name == "tiers" else struct_of(key.type)
        if inner is not None:
            fields = tables[key.name]
            fields = {"tiers": fields.get("additionalProperties"), "replicas": fields.get("items")}.get(
                key.name, fields
            )
            assert list(fields["properties"]) == [k.name for k in keys(inner)], key.name
            assert fields["additionalProperties"] is False


def gateway_settings(manifests: list[Manifest], tmp_path: Path) -> GatewaySettings:
    (config,) = [m for m in manifests if m["kind"] == "ConfigMap" and "gateway.toml" in m["data"]]
    file = tmp_path / "gateway.toml"
    file.write_text(config["data"]["gateway.toml"])
    return read_file(file)


def grace_s(manifests: list[Manifest], name: str) -> int:
    found: int = find(manifests, "Deployment", name)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    return found


def test_the_gateway_reads_its_configuration_and_finds_the_engines(tmp_path: Path) -> None:
    manifests = render({"gateway": GATEWAY}, release="green")
    read = gateway_settings(manifests, tmp_path)
    spec = container(manifests, "Deployment", "green-mfs-gateway")
    ports = {p["name"]: p["containerPort"] for p in spec["ports"]}
    assert read.host_and_port[1] == ports["http"] == 8080
    assert read.metrics.listen == "127.0.0.1:8081" and "metrics" not in ports
    assert spec["readinessProbe"]["httpGet"]["port"] == spec["livenessProbe"]["httpGet"]["port"] == "http"
    assert read.ext_proc.listen.endswith(f":{ports['ext-proc']}") and read.ext_proc.tls is not None
    mounts = [m["mountPath"] for m in spec["volumeMounts"]]
    assert str(read.ext_proc.tls.certificate.parent) in mounts and read.ext_proc.tls.ca is None
    assert (read.lame_duck_s, read.drain_s) == (5, 30)
    assert grace_s(manifests, "green-mfs-gateway") == 45
    (engine,) = read.replicas
    engines = find(manifests, "Service", "green-mfs-engines")["spec"]
    assert engine.each_address and engine.url == "http://green-mfs-engines.serving.svc:8001"
    assert engines["clusterIP"] == "None" and engines["selector"] == LABELS and engines["ports"][0]["port"] == 8001
    assert (read.route.router.value, read.admission.requests_max) == ("sticky", {"batch": 4})
    assert read.tiers["chat"].ttft_ms == 500
    pool = find(manifests, "InferencePool", "green-mfs")["spec"]
    assert pool["selector"] == {"matchLabels": LABELS} and pool["targetPorts"] == [{"number": 8001}]
    asked = pool["endpointPickerRef"]
    service = find(manifests, "Service", asked["name"])["spec"]
    assert asked["port"]["number"] in [p["port"] for p in service["ports"]] and asked["failureMode"] == "FailClose"
    own = find(manifests, "Deployment", asked["name"])["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= own.items()


def test_a_gateway_of_engines_that_are_named_one_by_one(tmp_path: Path) -> None:
    engines: list[dict[str, Any]] = [
        {"url": "http://10.0.0.1:8000", "tiers": ["chat"]},
        {"url": "http://10.0.0.2:8000"},
    ]
    config = {"replicas": engines, "tiers": {"chat": {"ttft_ms": 9}}, "drain_s": 599.5, "lame_duck_s": 20}
    manifests = render({"gateway": {"enabled": True, "config": config, "metricsPort": 9000, **OPEN_GATEWAY}})
    read = gateway_settings(manifests, tmp_path)
    ports = {p["name"]: p["containerPort"] for p in container(manifests, "Deployment", "mfs-gateway")["ports"]}
    assert read.metrics.listen == "0.0.0.0:9000" and ports["metrics"] == 9000
    assert (read.lame_duck_s, read.drain_s) == (20, 599.5) and grace_s(manifests, "mfs-gateway") == 630
    assert [replica.url for replica in read.replicas] == [one["url"] for one in engines] and not read.ext_proc.listen
    assert not [m for m in manifests if m["metadata"]["name"] == "mfs-engines" or m["kind"] == "InferencePool"]
    assert [p["name"] for p in find(manifests, "Service", "mfs-gateway")["spec"]["ports"]] == ["http"]
    security = find(manifests, "Deployment", "mfs-gateway")["spec"]["template"]["spec"]["securityContext"]
    assert security["runAsNonRoot"] is True


def test_the_schema_covers_every_value() -> None:
    """A value that the schema does not know would be refused by helm; a loose one would let typing errors pass."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: dict[str, Any], part: dict[str, Any], path: str) -> None:
        if "properties" not in part:
            return
        assert part["additionalProperties"] is False, path
        for name, value in values.items():
            assert name in part["properties"], f"{path}.{name}"
            if isinstance(value, dict):
                compare(value, part["properties"][name], f"{path}.{name}")

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "values")


def test_commands_of_the_readme_are_taken() -> None:
    """Installing needs a cluster; `helm template` reads the same chart, names and values."""
    commands = re.findall(r"^helm (?:install|upgrade) (.*)$", (CHART / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        words = [word for word in shlex.split(command) if word != "--reuse-values"]
        result = subprocess.run([HELM, "template", *words], capture_output=True, text=True, cwd=CHART.parents[2])
        assert result.returncode == 0, result.stderr


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == version("mfsd")
