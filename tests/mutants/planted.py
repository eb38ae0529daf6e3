"""A broken module in place of one of `src`, in each Python process that has the variable in its environment."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

PLANTED = "KEYLANE_PLANTED"
"""`module=file`: the module's code is in this file."""


class BrokenModule(importlib.machinery.SourceFileLoader):
    """Has its own place and name, and another file's code."""

    def __init__(self, name: str, path: str, code: Path) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._code.read_text(), self.path, "exec")


class Planter(importlib.abc.MetaPathFinder):
    """Finds the one module; all others are found as ever."""

    def __init__(self, module: str, code: Path) -> None:
        self._module, self._code = module, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname == self._module else None
        if spec is None or spec.origin is None:
            return None
        loader = BrokenModule(fullname, spec.origin, self._code)
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=spec.submodule_search_locations
        )


def plant() -> None:
    """What the environment names, if it names anything."""
    module, _, code = os.environ.get(PLANTED, "").partition("=")
    if module:
        assert module not in sys.modules, f"{module} has been loaded, and it is too late to break it"
        sys.meta_path.insert(0, Planter(module, Path(code)))
