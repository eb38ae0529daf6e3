"""A service that is paid by the call: it counts each by record and step, answers slowly, and hears what was kept."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections import Counter, defaultdict
from typing import Any, Self

from kit.stage import until

WORK_S = 0.01


class StepService:
    """In a thread of its own; what it hears has one order. Answers are the numbers of calls."""

    def __init__(self) -> None:
        service = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    self.wfile.write(f"{service.hear(*json.loads(line))}\n".encode())

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address: list[Any] = list(self._server.server_address[:2])
        self._lock = threading.Lock()
        self.calls: Counter[tuple[str, str]] = Counter()
        """By record and step."""
        self.again: Counter[str] = Counter()
        """By member: calls of a step whose answer was acknowledged before."""
        self.given: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        """The answers that handlers were given, by record and step."""
        self.through: set[str] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, records: int, within_s: float) -> None:
        """Until handlers are through with so many."""
        until(lambda: len(self.through) >= records, lambda: f"{len(self.through)} of {records}", within_s)

    def hear(self, member: str, what: str, record: str, *more: str) -> str:
        if what == "called":
            step = (record, more[0])
            with self._lock:
                self.calls[step] += 1
                self.again[member] += step in self.given
                answer = str(self.calls.total())
            time.sleep(WORK_S)
            return answer
        with self._lock:
            if what == "given":
                self.given[record, more[0]].add(more[1])
            else:
                self.through.add(record)
        return ""
