"""`hide`: a package that is installed is not there for this process, for imports and for `find_spec`."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def hide(package: str) -> None:
    """Before anything imports it. None in `sys.modules` would do for Python, but not for compiled modules (pyarrow)."""

    class Others(PathFinder):
        @classmethod
        def find_spec(
            cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
        ) -> ModuleSpec | None:
            return None if fullname == package else super().find_spec(fullname, path, target)

    sys.meta_path[:] = [Others if finder is PathFinder else finder for finder in sys.meta_path]
