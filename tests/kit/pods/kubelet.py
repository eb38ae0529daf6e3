"""A node of a real API server whose containers are processes of this machine: without images or a container runtime.

    python -m kit.pods.kubelet INDEX RUN     as root, in the cluster's namespaces; `Cluster` starts it

A pod gets what kit/pods/pod.py and kit/pods/containers.py say. Not there: exec, logs, port-forward, cluster addresses
of services, provisioned volumes, init containers, limits of memory and processors, NetworkPolicies.

An "image" is an entry of RUN/images.json, read at each start of a container: `binds` (paths in it, and here), `env`,
`entrypoint`, `workdir`, and `folders` that its user may write to. When the kubelet dies, its containers die with it.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from kit.pods.api import Api, ApiError
from kit.pods.containers import now
from kit.pods.pod import Pod

logger = logging.getLogger("kubelet")

TURN_S = 0.25
REPORT_S = 4.0
VERSION = "v1.34.2"


class Node:
    """Finds the pods that the scheduler has put here, and reports that it is alive. One thread; pods have their own."""

    def __init__(self, index: int, run: Path) -> None:
        self.index = index
        self.name = f"n{index}"
        self.ip = f"10.21.{index}.1"
        self.run = run
        self.api = Api(run / "pki")
        self.addresses: dict[tuple[str, str], list[tuple[str, str | None]]] = {}
        """Of a service, by namespace and name: addresses, and the host names of StatefulSets' pods."""
        self._pods: dict[str, Pod] = {}
        self._numbers = list(range(2, 255))
        """The last part of pods' addresses; a used one goes to the end, so that it rests before its next pod."""

    def serve(self) -> None:
        next_report = 0.0
        while True:
            try:
                if time.time() >= next_report:
                    self._report()
                    next_report = time.time() + REPORT_S
                self._look_at_services()
                self._look_at_pods()
            except (ApiError, OSError) as error:
                logger.info("api: %s", error)
            time.sleep(TURN_S)

    def _report(self) -> None:
        """The node, its status and its lease: it is ready as long as this goes on."""
        times = {"reason": "Process", "message": "", "lastHeartbeatTime": now(), "lastTransitionTime": now()}
        pressures = dict.fromkeys(("MemoryPressure", "DiskPressure", "PIDPressure"), "False")
        conditions = [
            {"type": kind, "status": value, **times} for kind, value in ({"Ready": "True"} | pressures).items()
        ]
        room = {"cpu": "16", "memory": "32Gi", "pods": "100", "ephemeral-storage": "20Gi"}
        info = {"kubeletVersion": VERSION, "osImage": "processes", "architecture": "amd64", "operatingSystem": "linux"}
        info |= {"containerRuntimeVersion": "process://1", "kernelVersion": os.uname().release, "kubeProxyVersion": ""}
        info |= {"bootID": "", "machineID": self.name, "systemUUID": self.name}
        status: dict[str, Any] = {"conditions": conditions, "capacity": room, "allocatable": room, "nodeInfo": info}
        status["addresses"] = [{"type": "InternalIP", "address": self.ip}, {"type": "Hostname", "address": self.name}]
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        self._make("/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}})
        self.api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})
        renewed = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": renewed}
        self._make(leases, {"metadata": {"name": self.name}, "spec": spec})
        self.api.patch(f"{leases}/{self.name}", {"spec": spec})

    def _make(self, path: str, body: dict[str, Any]) -> None:
        try:
            self.api.post(path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    def _look_at_services(self) -> None:
        services = self.api.items("/api/v1/services?resourceVersion=0")
        slices = self.api.items("/apis/discovery.k8s.io/v1/endpointslices?resourceVersion=0")
        also_unready = {
            (one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"].get("publishNotReadyAddresses", False)
            for one in services
        }
        found: dict[tuple[str, str], list[tuple[str, str | None]]] = {}
        for one in slices:
            service = one["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            key = (one["metadata"]["namespace"], service)
            if key not in also_unready or service == "kubernetes":
                continue
            for endpoint in one.get("endpoints") or []:
                if also_unready[key] or endpoint.get("conditions", {}).get("ready", True):
                    found.setdefault(key, []).extend((each, endpoint.get("hostname")) for each in endpoint["addresses"])
        if found != self.addresses:
            self.addresses = found
            for pod in list(self._pods.values()):
                if pod.is_alive() and (pod.folder / "hosts").exists():
                    pod.write_hosts()

    def _look_at_pods(self) -> None:
        """Start a thread for each pod that the scheduler has put here, and tell those that are gone."""
        listed = self.api.items(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}&resourceVersion=0")
        for found in listed:
            uid = found["metadata"]["uid"]
            if uid in self._pods:
                self._pods[uid].object = found
                continue
            taken = {pod.number for pod in self._pods.values()}
            number = next(one for one in self._numbers if one not in taken)
            self._numbers.remove(number)
            self._numbers.append(number)
            self._pods[uid] = Pod(self, found, number)
            self._pods[uid].start()
        for uid in set(self._pods) - {found["metadata"]["uid"] for found in listed}:
            self._pods[uid].is_gone = True
            if not self._pods[uid].is_alive():
                del self._pods[uid]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    Node(int(sys.argv[1]), Path(sys.argv[2])).serve()
