"""A page without a browser: what its server tells and answers, by plain HTTP."""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from keylane.ui.views import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WAIT_S = 60.0
PATIENCE_S = 300.0
"""For what a whole run comes to, on a busy machine; a view comes every second or two."""


class Answer:
    """Of one request."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class PageClient:
    """Asks the page at `url`; acts with `token`."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._host = urlsplit(url).netloc
        self._token = token

    def get(self, path: str, headers: Mapping[str, str] | None = None, **query: str) -> Answer:
        words = "&".join(f"{name}={quote(value)}" for name, value in query.items())
        return self._ask("GET", f"{path}?{words}" if words else path, None, headers or {})

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Answer:
        ours = {"Content-Type": "application/json"} | ({"X-Keylane-Token": self._token} if self._token else {})
        return self._ask("POST", path, json.dumps(body), ours | dict(headers or {}))

    def act(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self.post(path, body)
        assert answer.status == 200, answer.body
        return answer.said

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self._host, timeout=WAIT_S)
        try:
            connection.request(method, path, body, dict(headers))
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def watching(self, group: str = "") -> Watching:
        return Watching(self._host, group)


class Watching:
    """A stream of events, and the view that they make (as live.js makes it)."""

    def __init__(self, host: str, group: str) -> None:
        self._connection = http.client.HTTPConnection(host, timeout=WAIT_S)
        self._connection.request("GET", f"/api/events?group={quote(group)}")
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.view: dict[str, Any] = {}
        self.told: list[dict[str, Any]] = []

    def until(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The view for which it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.view or not condition(self.view):
            assert time.monotonic() < deadline, f"never: {what}: {self.view}"
            self._take(self._next())
        return self.view

    def _next(self) -> dict[str, Any]:
        while line := self._response.readline():
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                return found
        raise AssertionError("the stream ended")

    def _take(self, told: dict[str, Any]) -> None:
        self.told.append(told)
        if told.pop("whole", False):
            self.view = told
            return
        for section, now in told.items():
            if section == "point":
                self.view["history"].append(now)
            elif section in ROWS:
                rows = self.view.get(section, {}) | now
                self.view[section] = {name: row for name, row in rows.items() if row is not None}
            else:
                self.view[section] = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._response.close()
