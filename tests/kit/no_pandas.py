"""`hide_pandas`: keylane does not ask for pandas, so tests run without. A client of Spark Connect and its server, which
do ask for it, run with KEYLANE_PANDAS in the environment."""

from __future__ import annotations

import os
import sys

SHOWN = "KEYLANE_PANDAS"


class Hidden:
    """A finder of modules, before all others."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas" and SHOWN not in os.environ:
            raise ModuleNotFoundError(f"No module named {name!r} in tests", name=name)


def hide_pandas() -> None:
    """In this process."""
    sys.meta_path.insert(0, Hidden)
