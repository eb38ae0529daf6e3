"""One container of a pod, through all its restarts: a process of this machine in namespaces of its own.

It gets a copy-on-write view of this machine's `/` (or a read-only one), its user, capabilities, environment, volumes,
probes, preStop hook, grace, and restarts with back-off. Limits of memory and processors do not hold.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.pods.api import API_IP

if TYPE_CHECKING:
    from kit.pods.pod import Pod

logger = logging.getLogger("kubelet")

BACKOFF_S = 10.0
"""Before the second restart; doubled each time, as a kubelet does."""
MAX_BACKOFF_S = 300.0
RETRY_S = 2.0
IMAGE_USER = 185
"""Of each image here, as in the Dockerfiles of examples/kubernetes."""
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class NotYetError(Exception):
    """A container cannot start yet: reason and message of its waiting state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class ProbeRecord:
    """How a probe of a container has gone since its start."""

    due: float
    failures: int = 0
    successes: int = 0
    is_busy: bool = False


class Container:
    """The pod's thread calls it; probes and stops have threads of their own."""

    def __init__(self, pod: Pod, spec: dict[str, Any]) -> None:
        self.pod = pod
        self.spec = spec
        self.name: str = spec["name"]
        self.process: subprocess.Popen[bytes] | None = None
        self.state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: dict[str, Any] = {}
        self.restarts = 0
        self.failures = 0
        self.next_start = 0.0
        self.is_ready = self.is_started = self.is_stopping = False
        self.began = 0.0
        self.began_text = ""
        self._probes: dict[str, ProbeRecord] = {}

    # What the container is given

    def environment(self, image: dict[str, Any]) -> dict[str, str]:
        env = {"KUBERNETES_SERVICE_HOST": API_IP, "KUBERNETES_SERVICE_PORT": "443", "HOSTNAME": self.pod.name}
        env |= image["env"]
        for variable in self.spec.get("env", []):
            env[variable["name"]] = self._value_of(variable, env)
        return env

    def _value_of(self, variable: dict[str, Any], env: dict[str, str]) -> str:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            return self.pod.field(source["fieldRef"]["fieldPath"])
        for kind in ("secret", "configMap"):
            if reference := source.get(f"{kind}KeyRef"):
                data = self.pod.data(kind, reference["name"])
                if reference["key"] not in data:
                    message = f"couldn't find key {reference['key']} in {kind} {reference['name']}"
                    raise NotYetError("CreateContainerConfigError", message)
                return data[reference["key"]].decode()
        return expand(variable.get("value", ""), env)

    def _mounts(self, image: dict[str, Any]) -> dict[str, tuple[str, bool]]:
        """Path in the container: the path on this machine, and whether it is read-only."""
        mounts = {inside: (here, True) for inside, here in image["binds"].items()}
        for mount in self.spec.get("volumeMounts", []):
            folder = self.pod.volume(mount["name"]) / mount.get("subPath", "")
            mounts[mount["mountPath"]] = (str(folder), mount.get("readOnly", False))
        # /var/run is a link that would lead out of the container's root.
        return {os.path.realpath(inside): mount for inside, mount in mounts.items()}

    # Starting

    def start(self, images: Path) -> None:
        """Raises `NotYetError` for what is missing."""
        image = json.loads(images.read_text()).get(self.spec["image"])
        if image is None:
            raise NotYetError("ImagePullBackOff", f"{self.spec['image']}: not in {images}")
        context = self.pod.spec.get("securityContext", {}) | self.spec.get("securityContext", {})
        script = self._script(image, context, context.get("runAsUser", IMAGE_USER))
        isolation = ["setpriv", "--pdeathsig=KILL", "nsenter", f"--net=/run/netns/{self.pod.network}", "unshare"]
        isolation += ["-m", "-p", "-u", "-i", "--fork", "--kill-child", "bash", "-c", script]
        with self.pod.log_of(self.name).open("ab") as out:
            self.process = subprocess.Popen(
                isolation, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.began, self.began_text, self._probes = time.time(), now(), {}
        self.is_ready = self.is_started = self.is_stopping = False
        self.state = {"running": {"startedAt": self.began_text}}
        logger.info("%s %s started %s", self.pod.name, self.name, self.process.pid)

    def _script(self, image: dict[str, Any], context: dict[str, Any], user: int) -> str:
        """The shell that becomes the container: its own `/`, its mounts, its user, then its command."""
        env = self.environment(image)
        work, q = f"{self.pod.folder}/{self.name}", shlex.quote
        root = f"{work}/root"
        group = IMAGE_USER if user == IMAGE_USER else 0  # a user whom the image does not know has group 0
        lines = ["set -e", "mount --make-rprivate /", f"mkdir -p {work}", f"mount -t tmpfs tmpfs {work}"]
        lines += [f"mkdir {work}/upper {work}/work {root}"]
        lines += [f"mount -t overlay overlay -o lowerdir=/,upperdir={work}/upper,workdir={work}/work {root}"]
        for inside in image["binds"]:  # it may lie below /root, where others may not pass
            above = f'd={q(inside)}; while d=$(dirname "$d"); [ "$d" != / ]; do'
            lines += [f'{above} mkdir -p {root}"$d"; chmod a+x {root}"$d"; done']
        for folder in image["folders"]:
            lines += [f"mkdir -p {root}{q(folder)}", f"chown {IMAGE_USER}:{IMAGE_USER} {root}{q(folder)}"]
        if user == IMAGE_USER:
            entry = f"image:x:{user}:{group}::/nonexistent:/bin/sh"
            lines += [f"grep -q ':x:{user}:' {root}/etc/passwd || echo {entry} >> {root}/etc/passwd"]
        lines += [f"mount --rbind /dev {root}/dev", f"mount -t proc proc {root}/proc", f"mount --rbind /sys {root}/sys"]
        lines += [f"mount --bind {self.pod.folder}/hosts {root}/etc/hosts", f"hostname {q(self.pod.name[:63])}"]
        for inside, (here, is_read_only) in sorted(self._mounts(image).items()):
            target, parent = root + q(inside), root + q(str(Path(inside).parent))
            made = f"if [ -d {q(here)} ]; then mkdir -p {target}; else mkdir -p {parent}; touch {target}; fi"
            lines += [made, f"mount --bind {q(here)} {target}"]
            lines += [f"mount -o remount,bind,ro {target}"] if is_read_only else []
        lines += [f"mount -o remount,ro {root}"] if context.get("readOnlyRootFilesystem") else []
        groups = f"--groups={context['fsGroup']}" if "fsGroup" in context else "--clear-groups"
        privileges = ["setpriv", f"--reuid={user}", f"--regid={group}", groups]
        privileges += ["--no-new-privs"] if context.get("allowPrivilegeEscalation") is False else []
        drops_all = "ALL" in context.get("capabilities", {}).get("drop", [])
        privileges += ["--bounding-set=-all", "--inh-caps=-all"] if drops_all else []
        enter = ["env", "-i", *(f"{name}={value}" for name, value in env.items())]
        enter += ["/bin/sh", "-c", f'cd {q(image["workdir"])} && exec "$@"', "sh", *self._words(image, env)]
        return "\n".join([*lines, f"exec chroot {root} {shlex.join([*privileges, *enter])}"])

    def _words(self, image: dict[str, Any], env: dict[str, str]) -> list[str]:
        """The command line: the spec's command and arguments over the image's."""
        command = (
            [expand(word, env) for word in self.spec["command"]] if "command" in self.spec else image["entrypoint"]
        )
        return [*command, *(expand(word, env) for word in self.spec.get("args", []))]

    def wait_for(self, reason: str, message: str) -> None:
        self.state = {"waiting": {"reason": reason, "message": message[:500]}}
        self.next_start = time.time() + RETRY_S

    def may_start(self) -> bool:
        """Whether the pod's policy lets it begin, anew where it has ended."""
        policy = self.pod.spec.get("restartPolicy", "Always")
        ended = self.state.get("terminated")
        if ended and (policy == "Never" or (policy == "OnFailure" and ended["exitCode"] == 0)):
            return False
        if ended:
            message = f"back-off restarting failed container {self.name}"
            self.last_state, self.restarts = self.state, self.restarts + 1
            self.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        return True

    # Running

    def process_1(self) -> int | None:
        """As this machine numbers the container's first process."""
        process = self.process
        with suppress(OSError, IndexError):
            if process is not None:
                return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        return None

    def signal(self, number: signal.Signals) -> None:
        pid = self.process_1()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, grace_s: float, why: str) -> None:
        """PreStop hook, SIGTERM and, when the grace is over, SIGKILL: beside the pod's thread."""
        if self.is_stopping:
            return
        self.is_stopping = True
        logger.info("%s %s stops: %s, grace %s s", self.pod.name, self.name, why, grace_s)
        threading.Thread(target=self._finish, args=(time.time() + grace_s,), daemon=True).start()

    def _finish(self, deadline: float) -> None:
        hook = self.spec.get("lifecycle", {}).get("preStop", {}).get("exec")
        if hook:
            enter = ["nsenter", "-t", str(self.process_1()), "-m", "-p", "-n", "-u", "-r", "-w", "--", *hook["command"]]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(enter, timeout=max(0.1, deadline - time.time()), check=False, **QUIET)  # type: ignore[call-overload]
        self.signal(signal.SIGTERM)
        while self.process is not None and time.time() < deadline:
            time.sleep(0.05)
        if self.process is not None:
            logger.info("%s %s SIGKILL", self.pod.name, self.name)
            self.signal(signal.SIGKILL)

    def notice_end(self) -> None:
        """Once the process has ended: its exit code and reason, and when it may start again."""
        if self.process is None or self.process.poll() is None:
            return
        code = self.process.returncode
        code = 128 - code if code < 0 else code
        if code == 1 and b"sigprocmask unblock failed" in self.pod.log_of(self.name).read_bytes()[-200:]:
            code = 137  # unshare cannot die of its child's SIGKILL, and says this
        lived_s = time.time() - self.began
        logger.info("%s %s ended %s after %.2f s", self.pod.name, self.name, code, lived_s)
        self.failures += 1
        backoff_s = 0.0 if self.failures == 1 else BACKOFF_S * 2 ** (self.failures - 2)
        self.next_start = time.time() + min(backoff_s, MAX_BACKOFF_S)
        times = {"startedAt": self.began_text, "finishedAt": now()}
        reason = "Error" if code else "Completed"
        self.state = {"terminated": {"exitCode": code, "reason": reason, **times}}
        self.process = None
        self.is_ready = self.is_started = False

    @property
    def exit_code(self) -> int | None:
        code = self.state.get("terminated", {}).get("exitCode")
        return None if code is None else int(code)

    def status(self) -> dict[str, Any]:
        image = self.spec["image"]
        found = {"name": self.name, "image": image, "imageID": image, "ready": self.is_ready}
        found |= {"started": self.is_started, "restartCount": self.restarts}
        return found | {"state": self.state, "lastState": self.last_state}

    # Probes

    def start_probes(self) -> None:
        """Start each probe that is due; the startup probe alone until it has succeeded."""
        for kind in PROBES:
            probe = self.spec.get(kind)
            if not probe or self.is_started == (kind == "startupProbe"):
                continue
            record = self._probes.setdefault(kind, ProbeRecord(self.began + probe.get("initialDelaySeconds", 0)))
            if not record.is_busy and time.time() >= record.due:
                record.is_busy, record.due = True, time.time() + probe.get("periodSeconds", 10)
                threading.Thread(target=self._probe, args=(kind, probe, record, self.process), daemon=True).start()
        self.is_started = self.is_started or "startupProbe" not in self.spec
        self.is_ready = self.is_ready or (self.is_started and "readinessProbe" not in self.spec)

    def _probe(
        self, kind: str, probe: dict[str, Any], record: ProbeRecord, process: subprocess.Popen[bytes] | None
    ) -> None:
        why = self._fault_of(probe)
        record.is_busy = False
        if self.process is not process:  # it has been replaced meanwhile
            return
        record.failures = record.failures + 1 if why else 0
        if not why:
            self.is_started = self.is_started or kind == "startupProbe"
            self.is_ready = self.is_ready or kind == "readinessProbe"
            return
        logger.info("%s %s failed %s: %s", self.pod.name, kind, record.failures, why)
        if record.failures < probe.get("failureThreshold", 3):
            return
        if kind == "readinessProbe":
            self.is_ready = False
        elif not self.pod.is_leaving:
            self.stop(self.pod.spec.get("terminationGracePeriodSeconds", 30), kind)

    def _fault_of(self, probe: dict[str, Any]) -> str:
        """Why the container does not answer well; empty where it does."""
        timeout_s = probe.get("timeoutSeconds", 1)
        target = probe.get("httpGet") or probe["tcpSocket"]
        port = target["port"]
        if isinstance(port, str):
            port = next(one["containerPort"] for one in self.spec["ports"] if one.get("name") == port)
        try:
            if "tcpSocket" in probe:
                socket.create_connection((self.pod.ip, port), timeout_s).close()
            else:
                urllib.request.urlopen(f"http://{self.pod.ip}:{port}{target['path']}", timeout=timeout_s).close()
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read(200).decode(errors='replace').strip()}"
        except OSError as error:
            return str(error) or type(error).__name__
        return ""


def expand(text: str, env: dict[str, str]) -> str:
    """$(NAME) as Kubernetes expands it; $$ is a dollar."""
    return re.sub(r"\$\$|\$\(([\w.-]+)\)", lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text)
