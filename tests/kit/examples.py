"""How many examples hypothesis tries: all in `make test-full`, a quarter in `make test`, which newcomers wait for."""

from __future__ import annotations

import os

IS_QUICK = bool(os.environ.get("KEYLANE_NO_PEERS"))


def examples(whole: int) -> int:
    """Of `whole` ones, in this run."""
    return whole // 4 if IS_QUICK else whole
