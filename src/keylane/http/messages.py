"""`Request` and `Response`: plain values, so that a function of a record can be tested without a server."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. At most one of `body` and `json` is given."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    """Added to the URL's query, encoded."""
    body: bytes | None = None
    json: Any = None
    """Sent as JSON, with its content type."""

    @property
    def name(self) -> str:
        """How errors name it: method, host and path. The query is left out, it may hold secrets."""
        try:
            return self.origin + urlsplit(self.url).path
        except ValueError:
            return self.origin

    @property
    def origin(self) -> str:
        """How logs name it: method and host. The path is left out as well: of some services it is the secret."""
        try:
            parts = urlsplit(self.url)
        except ValueError:
            return f"{self.method} (a URL that cannot be read)"
        place = parts.netloc.rpartition("@")[2]
        return f"{self.method} {parts.scheme}://{place}"

    def __repr__(self) -> str:
        """Without headers and body: they may hold secrets, and what is in a record."""
        return f"Request({self.name})"


@dataclass(frozen=True, slots=True)
class Response:
    """What a server answered."""

    request: Request
    status: int
    headers: Mapping[str, str]
    """By lower-case name; of a name that came more than once, the last."""
    body: bytes

    def __repr__(self) -> str:
        return f"Response({self.request.name}: status {self.status}, {len(self.body):,} bytes)"

    @property
    def text(self) -> str:
        """The body as UTF-8; what is not UTF-8 is replaced."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body as JSON. Raises `ValueError` when it is none."""
        return json.loads(self.body)
