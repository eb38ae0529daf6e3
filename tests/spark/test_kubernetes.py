"""examples/kubernetes: what Kubernetes would refuse, and what would not find each other. No cluster is run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keylane.cli.main import build_parser
from kit.kubernetes import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
Documents = dict[tuple[str, str, str], dict[str, Any]]
"""By file, kind and name."""


@pytest.fixture(scope="module")
def parsed(spark: SparkSession) -> Callable[[str], list[dict[str, Any]]]:
    """The documents of a text, read by the library that Spark itself reads its pod templates with."""
    jvm: Any = spark._jvm
    jackson = jvm.com.fasterxml.jackson
    mapper = jackson.databind.ObjectMapper(jackson.dataformat.yaml.YAMLFactory())

    def parse(text: str) -> list[dict[str, Any]]:
        parts = re.split(r"^---\n", text, flags=re.MULTILINE)
        return [json.loads(mapper.readTree(part).toString()) for part in parts]

    return parse


@pytest.fixture(scope="module")
def documents(parsed: Callable[[str], list[dict[str, Any]]]) -> Documents:
    """Of each file; a pod template has no name, and goes by its file's."""
    return {
        (file.name, one["kind"], one["metadata"].get("name", file.stem)): one
        for file in FOLDER.glob("*.yaml")
        for one in parsed(file.read_text())
    }


def of_kind(documents: Documents, kind: str) -> Iterator[dict[str, Any]]:
    return (one for one in documents.values() if one["kind"] == kind)


def test_the_api_takes_every_document(documents: Documents) -> None:
    assert len(documents) == 9
    assert {place: found for place, one in documents.items() if (found := faults(one))} == {}


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        ("replicas: 3", "replica: 3", "spec: .*'replica' was unexpected"),
        ("replicas: 3", "replicas: three", "spec/replicas: 'three' is not of type 'integer'"),
        ("  selector:\n    matchLabels: {app: orders}\n", "", "spec: 'selector' is a required property"),
        ("path: /healthz,", "paths: /healthz,", "livenessProbe/httpGet: .*'paths' was unexpected"),
        ("apiVersion: apps/v1", "apiVersion: v1", r"\('v1', 'Deployment'\) is none of"),
    ],
)
def test_what_the_api_would_refuse_is_seen(
    parsed: Callable[[str], list[dict[str, Any]]], right: str, wrong: str, fault: str
) -> None:
    text = (FOLDER / "pipeline.yaml").read_text()
    assert right in text
    (document,) = parsed(text.replace(right, wrong))
    assert re.search(fault, "\n".join(faults(document)))


def test_what_is_named_is_there(documents: Documents, parsed: Callable[[str], list[dict[str, Any]]]) -> None:
    pods = {one["metadata"]["name"]: one["spec"]["template"] for one in of_kind(documents, "Deployment")}
    for one in of_kind(documents, "Deployment"):
        assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
    (service,) = of_kind(documents, "Service")
    assert service["spec"]["selector"] == pods["orders-driver"]["metadata"]["labels"]
    assert service["spec"]["publishNotReadyAddresses"], "lanes find their driver before it is ready"
    account = documents["rbac.yaml", "ServiceAccount", "spark"]["metadata"]["name"]
    binding = next(of_kind(documents, "RoleBinding"))
    assert binding["roleRef"]["name"] == next(of_kind(documents, "Role"))["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == [account]
    assert pods["orders-driver"]["spec"]["serviceAccountName"] == account
    template = documents["lanes.yaml", "ConfigMap", "orders-executor"]
    assert pods["orders-driver"]["spec"]["volumes"][0]["configMap"]["name"] == template["metadata"]["name"]
    assert parsed(template["data"]["executor-pod.yaml"]) == [documents["executor-pod.yaml", "Pod", "executor-pod"]]


def test_the_containers_commands_and_probes_are_keylanes(documents: Documents) -> None:
    for deployment in of_kind(documents, "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        name, *arguments = container["command"]
        assert name == "keylane"
        args = build_parser(arguments).parse_args(arguments)
        (port,) = container["ports"]
        assert port["containerPort"] == args.health_port
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert args.spark.startswith("k8s://")
    settings = dict(args.conf)
    service = next(of_kind(documents, "Service"))["metadata"]["name"]
    assert settings["spark.driver.host"].split(".")[0] == service
    assert settings["spark.kubernetes.container.image"] == container["image"]
    mounted = container["volumeMounts"][0]["mountPath"]
    assert settings["spark.kubernetes.executor.podTemplateFile"] == f"{mounted}/executor-pod.yaml"


def test_the_image_has_the_spark_that_is_tested() -> None:
    recipe = (FOLDER / "Dockerfile").read_text()
    assert re.findall(r"^ARG SPARK=(.+)$", recipe, re.MULTILINE) == re.findall(
        r"^pyspark==(.+)$", (ROOT / "dev.lock").read_text(), re.MULTILINE
    )
