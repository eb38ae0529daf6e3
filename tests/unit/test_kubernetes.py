"""examples/kubernetes: what Kubernetes would refuse, and what would not find each other. No cluster is run."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from keylane.cli.main import build_parser
from keylane.desk import TOKEN_VARIABLE
from keylane.metrics.pages import EVERY_ADDRESS
from keylane.pipeline import Pipeline
from kit.kubernetes import faults

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
Documents = dict[tuple[str, str, str], dict[str, Any]]
"""By file, kind and name."""
DOCUMENTS: Documents = {
    (file.name, one["kind"], one["metadata"].get("name", file.stem)): one
    for file in FOLDER.glob("*.yaml")
    for one in yaml.safe_load_all(file.read_text())
}
"""Of each file; a pod template has no name, and goes by its file's."""
AWAY_S = 30
"""What closing may take beyond the drain while brokers are away, as the guide says."""


def of_kind(kind: str) -> Iterator[dict[str, Any]]:
    return (one for one in DOCUMENTS.values() if one["kind"] == kind)


def deployment(name: str) -> dict[str, Any]:
    (found,) = (one for one in of_kind("Deployment") if one["metadata"]["name"] == name)
    return found


def test_the_api_takes_every_document() -> None:
    assert len(DOCUMENTS) == 12
    assert {place: found for place, one in DOCUMENTS.items() if (found := faults(one))} == {}


def test_what_is_named_is_there() -> None:
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind("Service")}
    for one in of_kind("Deployment"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        service = services[one["metadata"]["name"]]
        assert one["spec"]["selector"]["matchLabels"] == service["selector"] == labels
        assert service["publishNotReadyAddresses"], (
            "lanes find their driver, and operators a reason, before it is ready"
        )
    pod = deployment("orders-driver")["spec"]["template"]["spec"]
    account = DOCUMENTS["rbac.yaml", "ServiceAccount", "spark"]["metadata"]["name"]
    binding = next(of_kind("RoleBinding"))
    assert binding["roleRef"]["name"] == next(of_kind("Role"))["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == [account]
    assert pod["serviceAccountName"] == account
    template = DOCUMENTS["lanes.yaml", "ConfigMap", "orders-executor"]
    assert pod["volumes"][0]["configMap"]["name"] == template["metadata"]["name"]
    assert (
        yaml.safe_load(template["data"]["executor-pod.yaml"]) == DOCUMENTS["executor-pod.yaml", "Pod", "executor-pod"]
    )


def test_the_containers_commands_and_probes_are_keylanes() -> None:
    for one in of_kind("Deployment"):
        (container,) = one["spec"]["template"]["spec"]["containers"]
        name, *arguments = container["command"]
        assert name == "keylane"
        args = build_parser(arguments).parse_args(arguments)
        (port,) = container["ports"]
        assert port["containerPort"] in (args.health_port, args.metrics_port)
        assert args.metrics_port is None or args.metrics_host == EVERY_ADDRESS, "pods are scraped from outside"
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_members_have_a_login_and_are_operated_by_the_secret_that_the_page_makes() -> None:
    page = (ROOT / "docs" / "clusters.md").read_text()
    (name, made) = re.findall(r"kubectl create secret generic (\w+)((?:.*\\\n)*.*)", page)[0]
    for one in of_kind("Deployment"):
        (container,) = one["spec"]["template"]["spec"]["containers"]
        assert build_parser(container["command"][1:]).parse_args(container["command"][1:]).operate
        asked = {each["name"]: each["valueFrom"].get("secretKeyRef") for each in container["env"]}
        for variable in ("KAFKA_USERNAME", "KAFKA_PASSWORD", TOKEN_VARIABLE):
            assert asked[variable]["name"] == name
            assert f"--from-literal={asked[variable]['key']}=" in made


def test_the_drivers_settings_name_what_is_there() -> None:
    (container,) = deployment("orders-driver")["spec"]["template"]["spec"]["containers"]
    args = build_parser(container["command"][1:]).parse_args(container["command"][1:])
    assert args.spark.startswith("k8s://")
    settings = dict(args.conf)
    assert settings["spark.driver.host"].split(".")[0] == "orders-driver"
    assert settings["spark.kubernetes.container.image"] == container["image"]
    mounted = container["volumeMounts"][0]["mountPath"]
    assert settings["spark.kubernetes.executor.podTemplateFile"] == f"{mounted}/executor-pod.yaml"


def test_a_member_has_time_to_drain_before_it_is_killed() -> None:
    drain_ms = inspect.signature(Pipeline).parameters["drain_timeout_ms"].default
    pods = [one["spec"]["template"]["spec"] for one in of_kind("Deployment")] + [one["spec"] for one in of_kind("Pod")]
    assert len(pods) == 4
    for pod in pods:
        assert pod["terminationGracePeriodSeconds"] > drain_ms / 1000 + AWAY_S


def test_a_pipelines_page_is_found_by_whoever_scrapes_it() -> None:
    pod = deployment("orders")["spec"]["template"]
    (port,) = pod["spec"]["containers"][0]["ports"]
    (service_port,) = DOCUMENTS["pipeline.yaml", "Service", "orders"]["spec"]["ports"]
    assert (service_port["targetPort"], service_port["port"]) == (port["name"], port["containerPort"])
    monitor = next(of_kind("PodMonitor"))["spec"]
    assert monitor["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert [(one["port"], one["path"]) for one in monitor["podMetricsEndpoints"]] == [(port["name"], "/metrics")]
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


def test_a_pipelines_image_has_what_its_command_needs_and_runs_as_its_pod_does() -> None:
    recipe = (FOLDER / "Dockerfile.pipeline").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extra,) = re.findall(r"^ARG PACKAGE=keylane\[(\w+)\]$", recipe, re.MULTILINE)
    assert extra == "metrics"
    assert extra in extras
    pod = deployment("orders")["spec"]["template"]["spec"]
    assert re.findall(r"^USER (\d+)$", recipe, re.MULTILINE) == [str(pod["securityContext"]["runAsUser"])]
    words = [yaml.safe_load(one) for one in re.findall(r"^(?:ENTRYPOINT|CMD) (\[.+\])$", recipe, re.MULTILINE)]
    assert [word for each in words for word in each] == pod["containers"][0]["command"]
