"""One pod on a node: what it is given, and the thread that starts, watches, reports and ends its containers.

It has a network namespace with an address on the cluster's bridge, and an /etc/hosts in which services have the
addresses of their pods: nothing translates the addresses of services.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

from kit.pods.api import API_IP, ApiError
from kit.pods.containers import Container, NotYetError, now

if TYPE_CHECKING:
    from pathlib import Path

    from kit.pods.kubelet import Node

logger = logging.getLogger("kubelet")

STEP_S = 0.15
GATEWAY = "10.21.0.1"
"""The bridge's: behind it is the API server."""
GONE_GRACE_S = 2.0
"""Of a pod that the API server no longer has."""
Json = dict[str, Any]


def ip(arguments: str, *, check: bool = True) -> None:
    subprocess.run(["ip", *arguments.split()], check=check, capture_output=True)


class Pod(threading.Thread):
    """The node sets `object` and `is_gone`."""

    def __init__(self, node: Node, found: Json, number: int) -> None:
        super().__init__(daemon=True)
        self.node = node
        self.object = found
        self.namespace: str = found["metadata"]["namespace"]
        self.name: str = found["metadata"]["name"]
        self.uid: str = found["metadata"]["uid"]
        self.number = number
        self.ip = f"10.21.{node.index}.{number}"
        self.network = f"pod-{node.index}-{number}"
        self.folder = node.run / "pods" / self.uid
        self.is_gone = False
        self._volumes: dict[str, Path] = {}
        self._began = now()
        self._changes: dict[str, tuple[bool, str]] = {}
        self._reported: Json | None = None
        self._final_phase: str | None = None
        self._containers = [Container(self, spec) for spec in self.spec["containers"]]

    @property
    def spec(self) -> Json:
        spec: Json = self.object["spec"]
        return spec

    @property
    def is_leaving(self) -> bool:
        return self.is_gone or bool(self.object["metadata"].get("deletionTimestamp"))

    def log_of(self, container: str) -> Path:
        return self.node.run / "logs" / f"{self.namespace}_{self.name}_{container}.log"

    # What it is given

    def field(self, path: str) -> str:
        """The downward API's fieldPath."""
        if keyed := re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path):
            return str(self.object["metadata"].get(keyed[1], {}).get(keyed[2], ""))
        if path.startswith("status.podIP"):
            return self.ip
        value: Any = self.object
        for part in path.split("."):
            value = value.get(part, "")
        return str(value)

    def data(self, kind: str, name: str) -> dict[str, bytes]:
        """Keys and bytes of a configMap or secret."""
        try:
            found = self.node.api.get(f"/api/v1/namespaces/{self.namespace}/{kind.lower()}s/{name}")
        except ApiError as error:
            raise NotYetError("CreateContainerConfigError", f"{kind} {name}: {error}") from None
        if kind == "secret":
            return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}
        return {key: value.encode() for key, value in found.get("data", {}).items()}

    def volume(self, name: str) -> Path:
        """The folder that the volume is, filled when first asked for."""
        if name not in self._volumes:
            (volume,) = (one for one in self.spec["volumes"] if one["name"] == name)
            folder = self.folder / "volumes" / name
            if "persistentVolumeClaim" in volume:
                folder = self.node.run / "claims" / f"{self.namespace}-{volume['persistentVolumeClaim']['claimName']}"
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            for source in volume["projected"]["sources"] if "projected" in volume else [volume]:
                for path, content in self._files_of(source).items():
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / path).write_bytes(content)
            self._volumes[name] = folder
        return self._volumes[name]

    def _files_of(self, source: Json) -> dict[str, bytes]:
        for kind in ("configMap", "secret"):
            if reference := source.get(kind):
                data = self.data(kind, reference.get("name") or reference["secretName"])
                chosen = reference.get("items")
                return {one["path"]: data[one["key"]] for one in chosen} if chosen else data
        if "downwardAPI" in source:
            fields = source["downwardAPI"]["items"]
            return {one["path"]: self.field(one["fieldRef"]["fieldPath"]).encode() for one in fields}
        if token := source.get("serviceAccountToken"):
            bound = {"kind": "Pod", "apiVersion": "v1", "name": self.name, "uid": self.uid}
            account = self.spec.get("serviceAccountName", "default")
            path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
            body = {"expirationSeconds": token.get("expirationSeconds", 3600), "boundObjectRef": bound}
            return {token["path"]: self.node.api.post(path, {"spec": body})["status"]["token"].encode()}
        return {}

    def write_hosts(self) -> None:
        """In place, because the file is mounted into containers that run."""
        api = " ".join(f"kubernetes{end}" for end in (".default.svc.cluster.local", ".default.svc", ".default", ""))
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{self.ip} {self.name}", f"{API_IP} {api}"]
        for (namespace, service), addresses in self.node.addresses.items():
            names = [f"{service}.{namespace}.{end}" for end in ("svc.cluster.local", "svc")] + [
                f"{service}.{namespace}"
            ]
            names += [service] if namespace == self.namespace else []
            for address, host in addresses:
                own = [f"{host}.{one}" for one in names] if host else []
                lines.append(f"{address} {' '.join(names + own)}")
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")

    def _make_network(self) -> None:
        link, inside = f"k{self.node.index}x{self.number}", f"-n {self.network}"
        ip(f"netns add {self.network}")
        ip(f"link add {link} type veth peer name eth0 netns {self.network}")
        ip(f"link set {link} master br0 up")
        ip(f"{inside} addr add {self.ip}/16 dev eth0")
        ip(f"{inside} link set lo up")
        ip(f"{inside} link set eth0 up")
        ip(f"{inside} route add default via {GATEWAY}")

    # Its life

    def run(self) -> None:
        for stage in (self._live, self._await_deletion, self._leave):
            try:
                stage()
            except Exception:
                logger.exception("%s is broken", self.name)
        ip(f"netns del {self.network}", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _live(self) -> None:
        if self.object.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_hosts()
        self._make_network()
        while not self.is_leaving and self._final_phase is None:
            self._step()
            if all(one.process is None and one.exit_code is not None for one in self._containers):
                self._final_phase = None if any(one.may_start() for one in self._containers) else self._phase_at_end()
        self._report()

    def _step(self) -> None:
        """Start what may start, probe what runs, report."""
        for one in self._containers:
            one.notice_end()
            if one.process is None and time.time() >= one.next_start and one.may_start():
                try:
                    one.start(self.node.run / "images.json")
                except NotYetError as error:
                    one.wait_for(error.reason, str(error))
                except Exception as error:  # such as no token for the account of a pod that is being deleted
                    logger.exception("%s %s did not start", self.name, one.name)
                    one.wait_for("CreateContainerError", f"{type(error).__name__}: {error}")
            if one.process is not None and not one.is_stopping:
                one.start_probes()
        self._report()
        time.sleep(STEP_S)

    def _await_deletion(self) -> None:
        while not self.is_leaving:
            time.sleep(STEP_S)

    def _leave(self) -> None:
        """End the containers within the grace, then tell the API server that the pod may go."""
        grace_s = GONE_GRACE_S if self.is_gone else self.object["metadata"].get("deletionGracePeriodSeconds", 30)
        for one in self._containers:
            if one.process is not None:
                one.stop(grace_s, "pod deleted")
        while any(one.process is not None for one in self._containers):
            for one in self._containers:
                one.notice_end()
            self._report()
            time.sleep(STEP_S)
        self._final_phase = self._final_phase or self._phase_at_end()
        self._report()
        while not self.is_gone:
            try:
                self.node.api.delete(self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}})
            except ApiError as error:
                logger.info("%s delete: %s", self.name, error.status)
                return
            except OSError:  # nobody answers
                time.sleep(1)
            else:
                return

    def _phase_at_end(self) -> str:
        return "Failed" if any(one.exit_code for one in self._containers) else "Succeeded"

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def _condition(self, kind: str, *, is_true: bool) -> Json:
        if kind not in self._changes or self._changes[kind][0] != is_true:
            self._changes[kind] = (is_true, now())
        reason = {} if is_true else {"reason": "ContainersNotReady"}
        return {"type": kind, "status": str(is_true), "lastTransitionTime": self._changes[kind][1], **reason}

    def _report(self) -> None:
        """Patch the status, if it has changed, here or there: pods of a node that was silent are made unready."""
        if self.is_gone:
            return
        are_ready = all(one.is_ready for one in self._containers)
        are_running = any("running" in one.state or one.restarts for one in self._containers)
        conditions = {"Initialized": True, "ContainersReady": are_ready, "Ready": are_ready}
        phase = self._final_phase or ("Running" if are_running else "Pending")
        status: Json = {"phase": phase, "startTime": self._began, "hostIP": self.node.ip, "podIP": self.ip}
        status |= {"podIPs": [{"$patch": "replace"}, {"ip": self.ip}]}
        status |= {"containerStatuses": [one.status() for one in self._containers]}
        status |= {"conditions": [self._condition(kind, is_true=is_true) for kind, is_true in conditions.items()]}
        known = self.object.get("status", {}).get("conditions", [])
        is_overruled = any(one["type"] == "Ready" and one["status"] != str(are_ready) for one in known)
        if status == self._reported and not is_overruled:
            return
        try:
            self.node.api.patch(f"{self._path}/status", {"status": status})
            self._reported = json.loads(json.dumps(status))
        except ApiError as error:
            self.is_gone = error.status == 404
            if error.status not in (404, 409):
                logger.info("%s status: %s", self.name, error)
        except OSError:
            pass  # nobody answers: the next turn tells it
