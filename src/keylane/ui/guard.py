"""Whom the page's server answers. Pure.

A browser sends requests for any page that it shows. So a request must name this server as its own (else a stranger's
name was made to lead here: DNS rebinding), must not come from another site, and what acts must carry the token in a
header, which no other site can set. There is no cookie: nothing that a browser sends by itself proves anything.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_HEADER = "X-Keylane-Token"

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer."""


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Guard:
    """Of one server."""

    hosts: frozenset[str] = frozenset()
    """Names that lead here, beside localhost and addresses: a name in front of a proxy, for one."""
    token: str | None = None
    """None: nobody may act."""

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """None for a request that is answered; `headers` are found by name in any case."""
        host = headers.get("Host", "")
        name = _name(host)
        if name not in self.hosts and name != "localhost" and not _is_address(name):
            return Refusal(403, f"the host {name!r} is not this page's: name it with --allow-host")
        if not path.startswith("/api/"):
            return None
        origin = headers.get("Origin")
        if origin is not None and _place(origin) != host:
            return Refusal(403, "the request comes from another site")
        if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return Refusal(403, "the request comes from another site")
        return None if method == "GET" else self._may_act(headers)

    def _may_act(self, headers: Mapping[str, str]) -> Refusal | None:
        if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            return Refusal(415, "send application/json")
        if self.token is None:
            return Refusal(403, "this page only shows: start it with the members' token")
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(errors="surrogateescape"), self.token.encode()):
            return Refusal(401, "that is not the token that this page was started with")
        return None


def _name(host: str) -> str:
    """Without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _place(origin: str) -> str | None:
    """Its host and port; None for what is no address of the web."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    """An address, and no name: nobody else can make it lead here."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
