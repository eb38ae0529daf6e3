"""Calls of the API server, as an administrator."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

API_IP = "10.96.0.1"
"""What the Service `kubernetes` has, as the first address of the services' range."""
CALL_S = 30
PATCHES = {"merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json"}


class ApiError(Exception):
    """The API server refuses; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Api:
    """A connection for each call. Thread safety: any thread."""

    def __init__(self, certificates: Path) -> None:
        """The folder with `ca.crt`, `admin.crt` and `admin.key`."""
        self._tls = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self._tls.load_cert_chain(certificates / "admin.crt", certificates / "admin.key")

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def items(self, path: str) -> list[Any]:
        return list(self.get(path)["items"])

    def post(self, path: str, body: Any) -> Any:
        return self.call("POST", path, body)

    def patch(self, path: str, body: Any, kind: str = "strategic") -> Any:
        return self.call("PATCH", path, body, PATCHES[kind])

    def delete(self, path: str, body: Any = None) -> Any:
        return self.call("DELETE", path, body)

    def call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """The answer's document. Raises `ApiError`, and `OSError` while nobody answers."""
        connection = http.client.HTTPSConnection(API_IP, context=self._tls, timeout=CALL_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content, "Accept": "application/json"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise ApiError(response.status, text.decode(errors="replace")[:2000])
        try:
            return json.loads(text)
        except ValueError:
            return text.decode()
