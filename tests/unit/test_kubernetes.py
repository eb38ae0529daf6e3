"""examples/kubernetes: what Kubernetes would refuse, and what would not find each other. No cluster is run."""

from __future__ import annotations

import inspect
import re
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import keylane
from keylane.cli.grace import short_grace
from keylane.cli.main import build_parser
from keylane.desk import TOKEN_VARIABLE
from keylane.metrics.pages import EVERY_ADDRESS
from keylane.pipeline import Pipeline
from kit.kubernetes import faults

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
OVERLAYS = {file.parent.name: yaml.safe_load(file.read_text()) for file in FOLDER.glob("*/kustomization.yaml")}
"""What `kubectl apply -k` takes, by its folder's name."""
Documents = dict[tuple[str, str, str], dict[str, Any]]
"""By file, kind and name."""
DOCUMENTS: Documents = {
    (f"{file.parent.name}/{file.name}", one["kind"], one["metadata"].get("name", file.stem)): one
    for file in FOLDER.glob("*/*.yaml")
    if file.name != "kustomization.yaml"
    for one in yaml.safe_load_all(file.read_text())
}
"""Of each file; a pod template has no name, and goes by its file's."""
WORKLOADS = ("Deployment", "StatefulSet")
AWAY_S = 30
"""What closing may take beyond the drain while brokers are away, as the guide says."""


def of_kind(kind: str) -> Iterator[dict[str, Any]]:
    return (one for one in DOCUMENTS.values() if one["kind"] == kind)


def deployment(name: str) -> dict[str, Any]:
    (found,) = (one for one in of_kind("Deployment") if one["metadata"]["name"] == name)
    return found


def workloads() -> Iterator[dict[str, Any]]:
    return (one for kind in WORKLOADS for one in of_kind(kind))


def pods() -> dict[str, dict[str, Any]]:
    """The spec of each pod, by what makes it."""
    found = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in workloads()}
    return found | {name: one["spec"] for (_, kind, name), one in DOCUMENTS.items() if kind == "Pod"}


def arguments_of(one: dict[str, Any]) -> list[str]:
    """Of keylane, which the image starts behind an init: that of lanes is given it as a command."""
    (container,) = one["spec"]["template"]["spec"]["containers"]
    assert "command" not in container, "it would replace the image's init"
    arguments = list(container["args"])
    assert all(isinstance(word, str) for word in arguments), "YAML takes a word that ends in a colon for a mapping"
    return arguments[1:] if arguments[0] == "keylane" else arguments


def test_the_api_takes_every_document() -> None:
    assert len(DOCUMENTS) == 27
    assert {place: found for place, one in DOCUMENTS.items() if (found := faults(one))} == {}


def test_overlays_name_what_is_there_and_all_of_it() -> None:
    templates = {"lanes/driver-pod.yaml", "lanes/executor-pod.yaml"}
    named = set()
    for folder, one in OVERLAYS.items():
        for resource in one["resources"]:
            assert (FOLDER / folder / resource).exists(), resource
            named.add(f"{folder}/{resource}")
    assert {place for place, _, _ in DOCUMENTS} - named == templates
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for folder in OVERLAYS:
        assert f"`{folder}`" in page, folder


def test_every_pod_runs_under_pod_security_restricted_as_any_user_and_writes_nowhere_else() -> None:
    for name, pod in pods().items():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert "runAsUser" not in pod["securityContext"], f"{name}: the image's, or the cluster's choice"
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }, name
        assert {"name": "tmp", "emptyDir": {}} in pod["volumes"], name
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], name


def test_what_is_named_is_there() -> None:
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind("Service")}
    for one in workloads():
        labels = one["spec"]["template"]["metadata"]["labels"]
        name = one["spec"].get("serviceName", one["metadata"]["name"])
        assert one["spec"]["selector"]["matchLabels"] == services[name]["selector"] == labels
        assert services[name].get("publishNotReadyAddresses") or name == "orders-broker", (
            "lanes find their driver, and operators a reason, before it is ready"
        )
    labels_of_all = [one["spec"]["template"]["metadata"]["labels"] for one in workloads()]
    labels_of_all += [one["metadata"]["labels"] for one in of_kind("Pod")]
    for one in of_kind("PodDisruptionBudget"):
        assert one["spec"]["selector"]["matchLabels"] in labels_of_all
    pod = deployment("orders-driver")["spec"]["template"]["spec"]
    account = DOCUMENTS["lanes/rbac.yaml", "ServiceAccount", "spark"]["metadata"]["name"]
    binding = next(of_kind("RoleBinding"))
    assert binding["roleRef"]["name"] == next(of_kind("Role"))["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == [account]
    assert pod["serviceAccountName"] == account
    (made,) = OVERLAYS["lanes"]["configMapGenerator"]
    assert {"name": "executor", "configMap": {"name": made["name"]}} in pod["volumes"]
    assert made["files"] == ["executor-pod.yaml"]


def test_the_containers_commands_and_probes_are_keylanes() -> None:
    for one in workloads():
        (container,) = one["spec"]["template"]["spec"]["containers"]
        args = build_parser(arguments_of(one)).parse_args(arguments_of(one))
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        if args.command == "broker":
            assert container["readinessProbe"]["tcpSocket"] == {"port": "kafka"}
            continue
        name = "metrics" if args.metrics_port is not None else "health"
        assert ports[name] == (args.metrics_port or args.health_port)
        assert args.metrics_port is None or args.metrics_host == EVERY_ADDRESS, "pods are scraped from outside"
        for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            assert container[probe]["httpGet"] == {"path": path, "port": name}


def test_a_start_waits_for_brokers_and_is_told_its_grace() -> None:
    runs = [one for one in workloads() if arguments_of(one)[0] == "run"]
    assert len(runs) == 3
    for one in runs:
        args = build_parser(arguments_of(one)).parse_args(arguments_of(one))
        assert args.wait_for_brokers
        assert args.grace == one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert args.spark or (args.client_id == "$(POD_NAME)" and args.ready_when_assigned)
        kafka = {"bootstrap.servers": "b:9092", "group.id": "g"}
        pipeline = Pipeline(kafka=kafka, topics=["t"], handler=print)
        assert short_grace(pipeline, args.grace, args.spark, dict(args.conf)) == []


def test_members_have_a_login_and_are_operated_by_the_secret_that_the_page_makes() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (name, made) = re.findall(r"kubectl create secret generic (\w+)((?:.*\\\n)*.*)", page)[0]
    for one in (each for each in workloads() if arguments_of(each)[0] == "run"):
        (container,) = one["spec"]["template"]["spec"]["containers"]
        assert build_parser(arguments_of(one)).parse_args(arguments_of(one)).operate
        asked = {each["name"]: each["valueFrom"].get("secretKeyRef") for each in container["env"]}
        for variable in ("KAFKA_USERNAME", "KAFKA_PASSWORD", TOKEN_VARIABLE):
            assert asked[variable]["name"] == name
            assert f"--from-literal={asked[variable]['key']}=" in made


def test_the_drivers_settings_name_what_is_there() -> None:
    (container,) = deployment("orders-driver")["spec"]["template"]["spec"]["containers"]
    arguments = arguments_of(deployment("orders-driver"))
    args = build_parser(arguments).parse_args(arguments)
    assert args.spark.startswith("k8s://")
    settings = dict(args.conf)
    assert settings["spark.driver.host"].split(".")[0] == "orders-driver"
    assert settings["spark.kubernetes.container.image"] == container["image"]
    mounted = container["volumeMounts"][0]["mountPath"]
    assert settings["spark.kubernetes.executor.podTemplateFile"] == f"{mounted}/executor-pod.yaml"
    assert settings["spark.driver.bindAddress"] == "0.0.0.0"
    assert settings["spark.kubernetes.executor.useDriverPodIP"] == "false", "from 4.1 on executors are given 0.0.0.0"
    grace = DOCUMENTS["lanes/executor-pod.yaml", "Pod", "executor-pod"]["spec"]["terminationGracePeriodSeconds"]
    assert settings["spark.kubernetes.executor.terminationGracePeriodSeconds"] == str(grace)


def test_a_member_has_time_to_drain_before_it_is_killed() -> None:
    drain_ms = inspect.signature(Pipeline).parameters["drain_timeout_ms"].default
    drains = [pod for name, pod in pods().items() if name not in ("orders-broker", "offset-servers")]
    assert len(drains) == 5
    for pod in drains:
        assert pod["terminationGracePeriodSeconds"] > drain_ms / 1000 + AWAY_S


def test_a_pipelines_page_is_found_by_whoever_scrapes_it() -> None:
    pod = deployment("orders")["spec"]["template"]
    (port,) = pod["spec"]["containers"][0]["ports"]
    service = DOCUMENTS["pipeline/pipeline.yaml", "Service", "orders"]
    (service_port,) = service["spec"]["ports"]
    assert (service_port["targetPort"], service_port["port"]) == (port["name"], port["containerPort"])
    monitor = next(of_kind("ServiceMonitor"))["spec"]
    assert monitor["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert [(one["port"], one["path"]) for one in monitor["endpoints"]] == [(service_port["name"], "/metrics")]
    annotations = pod["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    assert annotations["prometheus.io/path"] == "/metrics"


def test_what_scales_a_pipeline_names_it_and_never_takes_its_last_member() -> None:
    scaled = next(of_kind("ScaledObject"))["spec"]
    assert scaled["scaleTargetRef"]["name"] == deployment("orders")["metadata"]["name"]
    assert 1 <= scaled["minReplicaCount"] < scaled["maxReplicaCount"]
    (trigger,) = scaled["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"].keys() == {"serverAddress", "query", "threshold", "ignoreNullValues"}


def test_the_image_has_the_spark_that_is_tested() -> None:
    recipe = (FOLDER / "Dockerfile").read_text()
    assert re.findall(r"^ARG SPARK=(.+)$", recipe, re.MULTILINE) == re.findall(
        r"^pyspark==([0-9.]+)", (ROOT / "dev.lock").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.pipeline"])
def test_an_image_is_built_from_the_wheel(name: str, tmp_path: Path) -> None:
    """keylane is in no package index; the shell gives pip the one wheel that is there, with the extras."""
    recipe = (FOLDER / name).read_text()
    (copied,) = re.findall(r"^COPY (keylane-\S+) /tmp/wheel/$", recipe, re.MULTILINE)
    (asked,) = re.findall(r"pip install --no-cache-dir (\"\$\(.+?\)\[\$\{EXTRAS\}\]\")", recipe)
    wheel = tmp_path / f"keylane-{keylane.__version__}-py3-none-any.whl"
    wheel.touch()
    assert list(tmp_path.glob(copied)) == [wheel]
    command = f"EXTRAS=http; printf %s {asked.replace('/tmp/wheel', str(tmp_path))}"
    assert subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout == f"{wheel}[http]"
    assert recipe.index(f"COPY {copied}") < recipe.index("pip install")


def test_a_pipelines_image_has_what_its_command_needs_and_runs_as_its_pod_does() -> None:
    recipe = (FOLDER / "Dockerfile.pipeline").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extra,) = re.findall(r"^ARG EXTRAS=(\w+)$", recipe, re.MULTILINE)
    assert extra == "metrics"
    assert extra in extras
    assert re.findall(r"^USER (\d+)$", recipe, re.MULTILINE) == ["185"], "a number: runAsNonRoot asks for it"
    (entry,) = [yaml.safe_load(one) for one in re.findall(r"^ENTRYPOINT (\[.+\])$", recipe, re.MULTILINE)]
    assert entry == ["/usr/bin/tini", "--", "keylane"], "process number 1 ignores SIGTERM until Python takes it"
    (default,) = [yaml.safe_load(one) for one in re.findall(r"^CMD (\[.+\])$", recipe, re.MULTILINE)]
    assert build_parser(default).parse_args(default).file == "/opt/app/pipeline.py"
