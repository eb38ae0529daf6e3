"""Packages that only the demo needs, and the command that brings them."""

from __future__ import annotations

import importlib.util

from keylane.errors import PeerError


def installed(package: str) -> bool:
    """Whether the package could be imported; it is not."""
    return importlib.util.find_spec(package) is not None


def require(*packages: str, extra: str = "demo") -> None:
    """Raises `PeerError`, naming the pip command, when one of the packages is not installed."""
    missing = [package for package in packages if not installed(package)]
    if missing:
        raise PeerError(f"{' and '.join(missing)} not installed: run `pip install 'keylane[{extra}]'`")
