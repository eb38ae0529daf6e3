"""`Cluster`: the control plane and its nodes, and what faults do to them.

It needs root, the tools of `TOOLS` and the namespaces that `make kubernetes` makes: it takes the addresses 10.21.0.0/16
and 10.96.0.1, and mounts over /run/netns. `python -m kit.pods.cluster` gets what it runs (Kubernetes, built from its
public Go modules, and Apache Kafka), and says what a machine lacks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import peers

from keylane.spark.java import find_java, launch_home
from kit.pods.api import API_IP, Api, ApiError
from kit.pods.certificates import make_certificates
from kit.pods.pod import GATEWAY, ip

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
KAFKA = f"{GATEWAY}:9092"
TOOLS = ("go", "ip", "java", "mvn", "nsenter", "prometheus", "setpriv", "tini", "unshare")
UP_S = 300.0
"""A dozen seconds on an idle machine."""
BUILD = ROOT / "bench" / "peers" / "kubernetes.sh"
TINI = ["tini", "--"]
"""What the images start keylane behind."""


def missing() -> str | None:
    """What this machine lacks, in one line; None when it lacks nothing."""
    lacks = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacks:
        return f"{', '.join(lacks)}: not on the PATH; `make kubernetes` needs {', '.join(TOOLS)}"
    if os.geteuid() != 0:
        return "`make kubernetes` makes namespaces: run it as root"
    return None


def binaries() -> Path:
    """etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl; built on first use."""

    def build(folder: Path) -> None:
        subprocess.run([str(BUILD), str(folder)], check=True)

    return peers.cached("kubernetes", [BUILD], build)


class Cluster:
    """A context manager. `app` is what /opt/app is in the images. Thread safety: one thread."""

    def __init__(self, run: Path, app: Path, *, nodes: int = 2) -> None:
        """`run` is an empty folder for state and logs; it is not below /tmp, which pods may mount over."""
        self.run = run
        self._app = app
        self._count = nodes
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._bin = binaries()
        for folder in ("logs", "pods", "claims", "pki"):
            (run / folder).mkdir(parents=True)
        make_certificates(run / "pki", API_IP)
        self.api = Api(run / "pki")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._processes.clear()

    def start(self) -> None:
        """Returns when all nodes are ready."""
        self._make_network()
        (self.run / "images.json").write_text(json.dumps(self._images()))
        (self.run / "kubeconfig").write_text(json.dumps(self._kubeconfig()))
        pki = self.run / "pki"
        self._spawn("etcd", "--unsafe-no-fsync", f"--data-dir={self.run}/etcd")
        self._spawn(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=0.0.0.0",
            "--secure-port=443",
            f"--advertise-address={GATEWAY}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            f"--tls-cert-file={pki}/server.crt",
            f"--tls-private-key-file={pki}/server.key",
            f"--client-ca-file={pki}/ca.crt",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/accounts.key",
            f"--service-account-signing-key-file={pki}/accounts.key",
            "--default-not-ready-toleration-seconds=10",
            "--default-unreachable-toleration-seconds=10",
        )
        self.until("the API server is ready", lambda: self.api.get("/readyz") == "ok")
        config = f"--kubeconfig={self.run}/kubeconfig"
        config_of = [config, f"--authentication-{config[2:]}", f"--authorization-{config[2:]}", "--leader-elect=false"]
        self._spawn(
            "kube-controller-manager",
            *config_of,
            f"--service-account-private-key-file={pki}/accounts.key",
            f"--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials",
            "--node-monitor-grace-period=16s",
            "--node-monitor-period=2s",
        )
        self._spawn("kube-scheduler", *config_of)
        for index in range(1, self._count + 1):
            ip(f"addr add 10.21.{index}.1/16 dev br0")
            self._start_kubelet(index)
        self.until("all nodes are ready", self._are_nodes_ready)

    def _are_nodes_ready(self) -> bool:
        found = self.api.items("/api/v1/nodes")
        taints = [taint for one in found for taint in one["spec"].get("taints", [])]
        return len(found) == self._count and not taints

    def _make_network(self) -> None:
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
        ip("link set lo up")
        ip("link add br0 type bridge")
        ip(f"addr add {GATEWAY}/16 dev br0")
        ip(f"addr add {API_IP}/32 dev br0")
        ip("link set br0 up")

    def _start_kubelet(self, index: int) -> None:
        command = [sys.executable, "-m", "kit.pods.kubelet", str(index), str(self.run)]
        self._run(f"kubelet-{index}", command, {"PYTHONPATH": f"{ROOT}/tests"})

    def _spawn(self, name: str, *options: str) -> None:
        self._run(name, [str(self._bin / name), *options], {})

    def _run(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self.run / "logs" / f"{name}.log").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _kubeconfig(self) -> dict[str, Any]:
        pki = self.run / "pki"
        server = {"server": f"https://{API_IP}:443", "certificate-authority": f"{pki}/ca.crt"}
        user = {"client-certificate": f"{pki}/admin.crt", "client-key": f"{pki}/admin.key"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "admin",
            "clusters": [{"name": "here", "cluster": server}],
            "users": [{"name": "admin", "user": user}],
            "contexts": [{"name": "admin", "context": {"cluster": "here", "user": "admin"}}],
        }

    def _images(self) -> dict[str, Any]:
        """What the Dockerfiles of examples/kubernetes make: here from the tests' environment."""
        java = launch_home(find_java())
        venv = Path(sys.prefix)
        binds = {str(place): str(place) for place in (ROOT, Path(sys.base_prefix), java)} | {"/opt/app": str(self._app)}
        path = f"{venv}/bin:{java}/bin:/usr/local/bin:/usr/bin:/bin"
        env = {"PATH": path, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "KAFKA": KAFKA}
        image = {"binds": binds, "env": env, "folders": [], "workdir": "/opt/app", "entrypoint": [*TINI, "keylane"]}
        work = "/opt/spark/work-dir"
        here = Path(__file__).parent / "spark"
        spark = image | {
            "binds": binds | {f"/opt/{name}": str(here / name) for name in ("entrypoint.sh", "decom.sh")},
            "env": env | {"JAVA_HOME": str(java), "SPARK_HOME": _spark_home(), "PYSPARK_PYTHON": f"{venv}/bin/python"},
            "folders": [work],
            "workdir": work,
            "entrypoint": ["/opt/entrypoint.sh"],
        }
        return {"registry.example.org/orders:1": image, "registry.example.org/orders-spark:1": spark}

    # What is done to it

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What it prints. Raises `RuntimeError` with what it says when it fails."""
        command = [str(self._bin / "kubectl"), f"--kubeconfig={self.run}/kubeconfig", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def until(self, what: str, holds: Callable[[], bool], seconds: float = UP_S) -> None:
        """Raises `RuntimeError` when it does not come to hold, or when the control plane has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(ApiError, OSError):
                if holds():
                    return
            for name, process in self._processes.items():
                if process.poll() is not None:
                    log = (self.run / "logs" / f"{name}.log").read_text(errors="replace")
                    raise RuntimeError(f"{name} has ended: {log[-800:]}")
            time.sleep(0.2)
        raise RuntimeError(f"within {seconds:g} s it did not come about that {what}; see {self.run}/logs")

    def pods(self, namespace: str, label: str) -> list[dict[str, Any]]:
        return self.api.items(f"/api/v1/namespaces/{namespace}/pods?labelSelector={label}")

    def log(self, namespace: str, pod: str) -> str:
        """Of all its containers."""
        return "".join(
            file.read_text(errors="replace") for file in (self.run / "logs").glob(f"{namespace}_{pod}_*.log")
        )

    def kill(self, namespace: str, pod: str) -> None:
        """SIGKILL to the first process of its containers, as when memory runs out."""
        address = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["status"]["podIP"]
        _, _, index, number = address.split(".")
        found = subprocess.run(
            ["ip", "netns", "pids", f"pod-{index}-{number}"], capture_output=True, text=True, check=True
        )
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if "NSpid:" in (status := Path(f"/proc/{pid}/status").read_text()) and _is_first(status):
                    os.kill(int(pid), signal.SIGKILL)

    def cut(self, index: int) -> None:
        """Nobody hears the node any more; its containers run on."""
        self._processes[f"kubelet-{index}"].send_signal(signal.SIGSTOP)
        for network in self._networks(index):
            ip(f"-n {network} link set eth0 down")

    def heal(self, index: int) -> None:
        """It is heard again."""
        for network in self._networks(index):
            ip(f"-n {network} link set eth0 up")
            ip(f"-n {network} route add default via {GATEWAY}")
        self._processes[f"kubelet-{index}"].send_signal(signal.SIGCONT)

    def name_pods(self, namespace: str) -> None:
        """This process finds the namespace's pods by the names that their Services give them, until their addresses
        change."""
        lines = ["127.0.0.1 localhost"]
        for one in self.api.items(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"):
            service = f"{one['metadata']['labels']['kubernetes.io/service-name']}.{namespace}.svc"
            for endpoint in one.get("endpoints") or []:
                own = f"{endpoint['hostname']}.{service}" if endpoint.get("hostname") else ""
                lines += [f"{address} {service} {own}" for address in endpoint["addresses"]]
        hosts = self.run / "hosts"
        is_mounted = hosts.exists()
        hosts.write_text("\n".join(lines) + "\n")
        if not is_mounted:
            subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)

    def _networks(self, index: int) -> list[str]:
        return [file.name for file in Path("/run/netns").glob(f"pod-{index}-*")]


def _is_first(status: str) -> bool:
    """Whether this /proc/PID/status is of number 1 of its container's namespace."""
    (numbers,) = (line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
    return len(numbers) > 1 and numbers[-1] == "1"


def _spark_home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def kafka(folder: Path) -> peers.Node:
    """An Apache Kafka that pods reach at `KAFKA`, once the cluster is there; formatted, and not yet started."""
    port = int(KAFKA.rsplit(":", 1)[1])
    properties = peers.single_node(port, port + 1) | {
        "listeners": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": f"PLAINTEXT://{KAFKA}",
    }
    node = peers.Node(folder, properties, port, options=["-Xmx768m"])
    node.format(peers.new_cluster_id())
    return node


if __name__ == "__main__":
    if reason := missing():
        sys.exit(f"keylane: {reason}")
    binaries()
    peers.jars("kafka")
