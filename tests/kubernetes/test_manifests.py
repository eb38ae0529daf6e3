"""examples/kubernetes on a real control plane, in namespaces under Pod Security `restricted`: `make kubernetes`.

Each overlay is held against the API server, applied as it is, and has a fault under load. Its pods are processes, so
neither images nor NetworkPolicies nor operators are tried.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kit.pods.cluster import KAFKA, ROOT, Cluster, kafka, missing
from kit.pods.crds import custom_resource_definitions
from kit.pods.pod import GATEWAY
from kit.pods.records import Load, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.kubernetes

FOLDER = ROOT / "examples" / "kubernetes"
OVERLAYS = sorted(file.parent.name for file in FOLDER.glob("*/kustomization.yaml"))
APP = ROOT / "tests" / "fixtures" / "pods"
RANDOM_USER = 1_000_730_000
"""As OpenShift gives one: no image knows it."""
RATE = 50.0
SOME_RESULTS = 200
"""So many, and it works: the fault may come."""


def say(line: str) -> None:
    """A figure, for who runs it."""
    sys.stdout.write(f"\n{line}\n")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    # Pods have a /tmp of their own, below which nothing of this machine's would be seen.
    with tempfile.TemporaryDirectory(prefix="keylane-pods-", dir="/var/tmp") as folder:
        began = time.monotonic()
        with Cluster(Path(folder, "run"), APP) as made:
            say(f"the control plane was up after {time.monotonic() - began:.1f} s")
            node = kafka(Path(folder, "kafka"))
            node.launch()
            node.wait()
            for one in custom_resource_definitions():
                made.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(one))
            try:
                yield made
            finally:
                node.kill()


@contextmanager
def namespace(cluster: Cluster, name: str) -> Iterator[str]:
    """Under Pod Security `restricted`, with the Secret that the manifests name."""
    level = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    cluster.api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": level}})
    cluster.until(
        "the account is made", lambda: bool(cluster.api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
    )
    login = {"username": "orders", "password": "secret", "operations-token": "a token that nobody guesses"}
    cluster.api.post(f"/api/v1/namespaces/{name}/secrets", {"metadata": {"name": "orders"}, "stringData": login})
    try:
        yield name
    except BaseException:
        say(cluster.kubectl("-n", name, "get", "all", "-o", "wide"))
        for pod in cluster.api.items(f"/api/v1/namespaces/{name}/pods"):
            say(f"{pod['metadata']['name']}: {pod['status']}\n{cluster.log(name, pod['metadata']['name'])[-3000:]}")
        raise
    finally:
        cluster.kubectl("delete", "namespace", name, "--timeout=300s")


def wait_for(cluster: Cluster, space: str, *workloads: str) -> None:
    for workload in workloads:
        cluster.kubectl("-n", space, "rollout", "status", workload, "--timeout=500s")


def pods_of(cluster: Cluster, space: str, app: str) -> list[str]:
    return [one["metadata"]["name"] for one in cluster.pods(space, f"app={app}")]


def apply(cluster: Cluster, space: str, overlay: str) -> None:
    """As it is. What the API server warns of is a failure."""
    cluster.kubectl("-n", space, "apply", "--validate=strict", "--warnings-as-errors", "-k", str(FOLDER / overlay))


def run_through(load: Load, what: str, fault: Callable[[], object]) -> Verdict:
    """The verdict on a load under which the fault came, printed for the page of figures."""
    began = time.monotonic()
    with load:
        load.wait_for_results(1)
        first_s = time.monotonic() - began
        load.wait_for_results(SOME_RESULTS)
        fault_began = time.monotonic()
        fault()
        fault_s = time.monotonic() - fault_began
    verdict = load.judge()
    say(f"{what}: first result after {first_s:.1f} s of load, fault over after {fault_s:.1f} s, {verdict}")
    assert verdict.lost == 0
    assert verdict.out_of_order == 0
    return verdict


def in_flight_of(members: int) -> int:
    """Records that a member may have begun and not committed, at most: handlers, and the buffer before a commit."""
    return members * int(100 + 2 * RATE)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_api_server_takes_each_manifest(cluster: Cluster, overlay: str) -> None:
    with namespace(cluster, f"dry-{overlay}") as space:
        strict = ("--dry-run=server", "--validate=strict", "--warnings-as-errors")
        said = cluster.kubectl("-n", space, "apply", *strict, "-k", str(FOLDER / overlay))
        assert said.count("(server dry run)") == len(said.splitlines()) > 0


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_the_api_server_takes_pods_of_spark_s_templates(cluster: Cluster, role: str) -> None:
    """Spark sets the names and the image."""
    pod: dict[str, Any] = yaml.safe_load((FOLDER / "lanes" / f"{role}-pod.yaml").read_text())
    pod["metadata"]["name"] = role
    pod["spec"]["containers"][0]["image"] = "registry.example.org/orders-spark:1"
    with namespace(cluster, f"dry-{role}") as space:
        dry = ("--dry-run=server", "--validate=strict", "--warnings-as-errors")
        cluster.kubectl("-n", space, "create", *dry, "-f", "-", stdin=yaml.safe_dump(pod))


def test_a_rollout_to_another_user_under_load(cluster: Cluster) -> None:
    """`pipeline`."""
    load = Load(KAFKA, "orders", RATE)
    load.make_topics()
    user = f'{{"spec": {{"template": {{"spec": {{"securityContext": {{"runAsUser": {RANDOM_USER}}}}}}}}}}}'

    with namespace(cluster, "pipeline") as space:
        apply(cluster, space, "pipeline")
        wait_for(cluster, space, "deployment/orders")

        def roll_out() -> None:
            cluster.kubectl("-n", space, "patch", "deployment/orders", "-p", user)
            wait_for(cluster, space, "deployment/orders")

        verdict = run_through(load, "pipeline, rollout to a random user", roll_out)
        assert verdict.twice <= in_flight_of(3)
        assert len(verdict.pods) > 3


def test_a_static_member_is_killed_and_rolled_out_under_load(cluster: Cluster) -> None:
    """`static`: its successor has the same name, and with it the partitions."""
    load = Load(KAFKA, "static", RATE)
    load.make_topics()
    with namespace(cluster, "static") as space:
        apply(cluster, space, "static")
        wait_for(cluster, space, "statefulset/orders-static")

        def kill_and_roll_out() -> None:
            cluster.kill(space, "orders-static-1")
            cluster.kubectl("-n", space, "rollout", "restart", "statefulset/orders-static")
            wait_for(cluster, space, "statefulset/orders-static")

        verdict = run_through(load, "static, SIGKILL and rollout", kill_and_roll_out)
        assert verdict.twice <= in_flight_of(1)
        assert set(verdict.pods) <= {f"orders-static-{number}" for number in range(3)}


def test_a_drained_node_under_load(cluster: Cluster) -> None:
    """`monitoring`: evictions that the budget lets through one by one."""
    load = Load(KAFKA, "drained", RATE)
    load.make_topics()
    with namespace(cluster, "monitoring") as space:
        apply(cluster, space, "monitoring")
        cluster.kubectl("-n", space, "set", "env", "deployment/orders", "TOPIC=drained")
        wait_for(cluster, space, "deployment/orders")

        def drain() -> None:
            ours = "--pod-selector=app=orders"
            cluster.kubectl("drain", "n1", ours, "--delete-emptydir-data", "--timeout=500s")
            cluster.kubectl("uncordon", "n1")
            wait_for(cluster, space, "deployment/orders")

        verdict = run_through(load, "monitoring, drain of a node", drain)
        assert verdict.twice <= in_flight_of(3)


def test_members_come_and_go_under_load(cluster: Cluster) -> None:
    """`scaling`, whose manifest has no number of members: KEDA's place is taken by the test."""
    load = Load(KAFKA, "scaled", RATE)
    load.make_topics()
    with namespace(cluster, "scaling") as space:
        apply(cluster, space, "scaling")
        cluster.kubectl("-n", space, "set", "env", "deployment/orders", "TOPIC=scaled")

        def scale(replicas: int) -> None:
            cluster.kubectl("-n", space, "scale", "deployment/orders", f"--replicas={replicas}")
            wait_for(cluster, space, "deployment/orders")

        scale(1)

        def come_and_go() -> None:
            scale(4)
            scale(2)

        verdict = run_through(load, "scaling, from 1 to 4 to 2 members", come_and_go)
        assert verdict.twice <= in_flight_of(4)


def test_prometheus_finds_the_members_and_answers_what_scales_them(cluster: Cluster, tmp_path: Path) -> None:
    """It is given what the operator makes of the ServiceMonitor, and asked what KEDA asks by the ScaledObject."""
    monitor = yaml.safe_load((FOLDER / "monitoring" / "servicemonitor.yaml").read_text())
    scaled = yaml.safe_load((FOLDER / "scaling" / "scaledobject.yaml").read_text())
    (trigger,) = (one["metadata"] for one in scaled["spec"]["triggers"] if one["type"] == "prometheus")
    load = Load(KAFKA, "monitored", RATE * 8)
    load.make_topics()
    with namespace(cluster, "monitored") as space:
        apply(cluster, space, "monitoring")
        cluster.kubectl("-n", space, "set", "env", "deployment/orders", "TOPIC=monitored", "WORK_S=0.5")
        wait_for(cluster, space, "deployment/orders")
        cluster.until("members of before are gone", lambda: len(pods_of(cluster, space, "orders")) == 3)
        with prometheus(cluster, tmp_path, space, monitor["spec"]) as ask, load:
            cluster.until("each member is up", lambda: ask("count(up == 1)") == 3)
            most = float(trigger["threshold"])
            cluster.until("a second member is asked for", lambda: (ask(trigger["query"]) or 0) > most)
        verdict = load.judge()
    say(f"monitoring, slow members: the ScaledObject's query exceeded {most:g}, {verdict}")
    assert verdict.lost == verdict.out_of_order == 0


@contextmanager
def prometheus(
    cluster: Cluster, folder: Path, space: str, monitor: dict[str, Any]
) -> Iterator[Callable[[str], float | None]]:
    """A Prometheus that scrapes what the spec of a ServiceMonitor chooses; what it yields asks for a query's value."""
    (endpoint,) = monitor["endpoints"]
    job = {
        "job_name": "orders",
        "scrape_interval": "1s",  # in place of its own, so that nobody waits
        "metrics_path": endpoint["path"],
        "static_configs": [
            {"targets": chosen_by(cluster, space, monitor["selector"]["matchLabels"], endpoint["port"])}
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump({"scrape_configs": [job]}))
    command = ["prometheus", "--config.file=prometheus.yaml", "--web.listen-address=127.0.0.1:9090"]
    with (folder / "prometheus.log").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        yield value_of
    finally:
        process.terminate()
        process.wait(60)


def chosen_by(cluster: Cluster, space: str, labels: dict[str, str], port: str) -> list[str]:
    """The addresses behind this port of the Services with these labels."""
    selector = urllib.parse.quote(",".join(f"{name}={value}" for name, value in labels.items()))
    services = cluster.api.items(f"/api/v1/namespaces/{space}/services?labelSelector={selector}")
    slices = cluster.api.items(f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices")
    names = {one["metadata"]["name"] for one in services}
    return [
        f"{address}:{each['port']}"
        for one in slices
        if one["metadata"]["labels"]["kubernetes.io/service-name"] in names
        for each in one["ports"]
        if each["name"] == port
        for endpoint in one["endpoints"]
        for address in endpoint["addresses"]
    ]


def value_of(query: str) -> float | None:
    """None while there is none. Raises `OSError` while nobody answers."""
    place = "http://127.0.0.1:9090/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(place, timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def test_an_executor_goes_under_load(cluster: Cluster) -> None:
    """`lanes`."""
    load = Load(KAFKA, "lanes", RATE)
    load.make_topics()
    with namespace(cluster, "lanes") as space:
        apply(cluster, space, "lanes")
        wait_for(cluster, space, "deployment/orders-driver")

        def delete_executor() -> None:
            victim = pods_of(cluster, space, "orders-executor")[0]
            cluster.kubectl("-n", space, "delete", "pod", victim)
            cluster.until("two executors run", lambda: executors_that_run() == 2)

        def executors_that_run() -> int:
            return sum(one["status"]["phase"] == "Running" for one in cluster.pods(space, "app=orders-executor"))

        verdict = run_through(load, "lanes, an executor deleted", delete_executor)
        assert verdict.twice <= in_flight_of(3)
        (driver,) = cluster.pods(space, "app=orders-driver")
        assert driver["status"]["containerStatuses"][0]["restartCount"] == 0


def test_offset_servers_are_rolled_out_and_lose_a_node_under_load(cluster: Cluster) -> None:
    """`offset-servers`, for members of `pipeline`."""
    load = Load(KAFKA, "served", RATE)
    load.make_topics()
    with namespace(cluster, "offset-servers") as space:
        make_service_kafka(cluster, space)
        apply(cluster, space, "offset-servers")
        of_one_node = '[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "%s"}]'
        alone = of_one_node % "--allow-unreplicated-log"
        cluster.kubectl("-n", space, "patch", "statefulset/offset-servers", "--type=json", "-p", alone)
        wait_for(cluster, space, "statefulset/offset-servers")
        apply(cluster, space, "pipeline")
        servers = "OFFSET_SERVERS=offset-servers:9192"
        cluster.kubectl("-n", space, "set", "env", "deployment/orders", "TOPIC=served", servers)
        wait_for(cluster, space, "deployment/orders")

        def roll_out_kill_and_cut() -> None:
            cluster.kubectl("-n", space, "rollout", "restart", "statefulset/offset-servers")
            wait_for(cluster, space, "statefulset/offset-servers")
            cluster.kill(space, "offset-servers-0")
            cluster.cut(1)
            cluster.until(
                "the node counts as lost", lambda: "node.kubernetes.io/unreachable" in taints_of(cluster, "n1")
            )
            cluster.heal(1)
            cluster.until("the node is back", lambda: not taints_of(cluster, "n1"))
            wait_for(cluster, space, "statefulset/offset-servers", "deployment/orders")

        verdict = run_through(
            load, "offset-servers, rollout, SIGKILL, and a node cut and healed", roll_out_kill_and_cut
        )
        assert verdict.twice <= in_flight_of(6)


def test_the_embedded_broker_is_killed_and_evicted_under_load(cluster: Cluster) -> None:
    """`broker`, for members of `pipeline`: nothing of its volume is lost, and clients wait."""
    with namespace(cluster, "broker") as space:
        make_volume(cluster)
        apply(cluster, space, "broker")
        wait_for(cluster, space, "statefulset/orders-broker")
        cluster.name_pods(space)
        bootstrap = f"orders-broker-0.orders-broker.{space}.svc:9092"
        load = Load(bootstrap, "stored", RATE)
        load.make_topics()
        apply(cluster, space, "pipeline")
        cluster.kubectl("-n", space, "set", "env", "deployment/orders", "TOPIC=stored", "KAFKA=orders-broker:9092")
        wait_for(cluster, space, "deployment/orders")

        def kill_and_evict() -> None:
            cluster.kill(space, "orders-broker-0")
            cluster.until("it has begun anew", lambda: restarts() == 1)
            wait_for(cluster, space, "statefulset/orders-broker")
            uid = pod()["metadata"]["uid"]
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "orders-broker-0"}}
            cluster.api.post(f"/api/v1/namespaces/{space}/pods/orders-broker-0/eviction", eviction)
            cluster.until("another pod is there", lambda: pod()["metadata"]["uid"] != uid)
            wait_for(cluster, space, "statefulset/orders-broker")
            cluster.name_pods(space)

        def pod() -> dict[str, Any]:
            (found,) = cluster.pods(space, "app=orders-broker")
            return found

        def restarts() -> int:
            return int(pod()["status"]["containerStatuses"][0]["restartCount"])

        verdict = run_through(load, "broker, SIGKILL and eviction", kill_and_evict)
        assert verdict.twice <= in_flight_of(3)


def taints_of(cluster: Cluster, node: str) -> set[str]:
    return {one["key"] for one in cluster.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])}


def make_service_kafka(cluster: Cluster, space: str) -> None:
    """`kafka:9092`, which the manifest names as the log."""
    ports = [{"name": "kafka", "port": 9092, "protocol": "TCP"}]
    service = {"metadata": {"name": "kafka"}, "spec": {"clusterIP": "None", "ports": ports}}
    cluster.api.post(f"/api/v1/namespaces/{space}/services", service)
    labels = {"kubernetes.io/service-name": "kafka"}
    endpoints = [{"addresses": [GATEWAY], "conditions": {"ready": True}}]
    found = {
        "metadata": {"name": "kafka", "labels": labels},
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": endpoints,
    }
    cluster.api.post(f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices", found)


def make_volume(cluster: Cluster) -> None:
    """What a provisioner would make for the claim."""
    spec = {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/nowhere"}}
    cluster.api.post("/api/v1/persistentvolumes", {"metadata": {"name": "broker"}, "spec": spec})
