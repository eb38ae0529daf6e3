"""Addresses of requests: which URLs can be asked at all, where a redirect leads, and which hosts are one's own.

The idea: a URL goes out as it was given, since a signature may cover each of its characters. What can never work is
found before a connection is made, so that no attempt is wasted on it.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from keylane.http.errors import UnsendableError
from keylane.http.messages import Request
from keylane.telling import kind_of

ENVIRONMENT = "environment"
"""The value of `proxy` that asks the variables HTTP_PROXY, HTTPS_PROXY and NO_PROXY."""

KEEPS_METHOD = frozenset({307, 308})
"""Redirects after which the same request is sent again (RFC 9110, 15.4.8 and 15.4.9)."""
WITHOUT_BODY = frozenset({"GET", "HEAD"})

_AS_GIVEN = re.compile(r"[!-~]+", re.ASCII)
_ORIGIN = re.compile(r"[^/?#]*(?://[^/?#]*)?")
"""Scheme, host and port, which many URLs have in common."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER_PUBLIC = tuple(
    ipaddress.IPv6Network(network)
    for network in ("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "3fff::/20", "5f00::/16", "fec0::/10")
)
"""What Python takes for public: IPv4 addresses wrapped in ways that nobody on the internet uses, a translator of one's
own, documentation, segment routing, and site-local addresses."""


def unsendable(request: Request, reason: str) -> UnsendableError:
    return UnsendableError(f"{request.name}: {reason}", logged_text=f"{request.origin}: {reason}")


def url_of(request: Request) -> URL:
    """The URL to ask, with the request's `params`. Raises `UnsendableError` where no attempt can ever work."""
    if not isinstance(request.url, str):
        raise UnsendableError(f"the URL of a request is {kind_of(request.url)}: give a str")
    is_plain = _AS_GIVEN.fullmatch(request.url)
    if not is_plain and _CONTROL.search(request.url):
        raise unsendable(request, "its URL has a control character")
    try:
        lacking = _lacks(_ORIGIN.match(request.url)[0])  # type: ignore[index] # it matches any string
        if lacking is not None:
            raise unsendable(request, lacking)
        given = request.url
        if request.params:
            given, hash_sign, fragment = given.partition("#")
            joint = "" if given.endswith(("?", "&")) else "&" if "?" in given else "?"
            given += joint + urlencode(request.params) + hash_sign + fragment
        return URL(given, encoded=True) if is_plain else URL(given)
    except UnsendableError:
        raise
    except ValueError as error:
        raise unsendable(request, f"its URL cannot be read ({type(error).__name__})") from error


@lru_cache(maxsize=4_096)
def _lacks(origin: str) -> str | None:
    """What a URL that begins so lacks to be asked; None for nothing. Raises `ValueError` where it cannot be read."""
    parts = urlsplit(origin)
    host, _ = parts.hostname, parts.port
    if parts.scheme.lower() not in {"http", "https"}:
        return "its URL has to begin with http:// or https://"
    if not host:
        return "its URL names no host"
    _check_host(host)
    return None


def _check_host(host: str) -> None:
    """Raises `ValueError` for what is no name and no address."""
    if ":" in host:
        ipaddress.IPv6Address(host.partition("%")[0])
        return
    name = host.removesuffix(".").encode("idna").decode("ascii")
    if not re.fullmatch(r"[A-Za-z0-9_.~-]+", name):
        raise ValueError(host)


def redirected(request: Request, asked: URL, status: int, location: str | None) -> tuple[Request, URL] | None:
    """The request that follows this redirect, and where it goes; None where following would change what is asked.

    A request with a body is sent again only after 307 and 308, which keep it. Nothing of the user's headers goes to
    another origin but the content type, and no request goes from https to http.
    """
    if not location or (status not in KEEPS_METHOD and request.method.upper() not in WITHOUT_BODY):
        return None
    try:
        target = asked.join(URL(location, encoded=bool(_AS_GIVEN.fullmatch(location))))
        is_same = target.origin() == asked.origin()
    except ValueError:
        return None
    if asked.scheme == "https" and target.scheme != "https":
        return None
    headers = request.headers
    if not is_same:
        headers = {name: value for name, value in headers.items() if name.lower() == "content-type"}
    following = Request(request.method, str(target), headers, {}, request.body, request.json)
    return following, url_of(following)


def proxy_for(url: URL, proxy: str | None) -> str | None:
    """The proxy to ask for this URL: the one that was given, or the environment's."""
    if proxy != ENVIRONMENT:
        return proxy
    if url.host is None or proxy_bypass(f"{url.host}:{url.port}"):
        return None
    return getproxies().get(url.scheme)


def is_public(address: str) -> bool:
    """Whether an IP address belongs to no network of one's own: neither loopback, private, link-local nor reserved,
    also where IPv6 wraps an IPv4 address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if any(ip in network for network in _NEVER_PUBLIC):
            return False
        wrapped = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if wrapped is None and ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(str(wrapped))
    return ip.is_global and not ip.is_multicast
