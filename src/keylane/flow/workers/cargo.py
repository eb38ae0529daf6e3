"""How the user's functions travel to another process: by cloudpickle, the user's own modules by value.

A user's `app.py` and its neighbours are on the path of the process that made the pipeline, and perhaps of no other.
Functions and classes from such modules therefore travel as code; installed packages travel by name.
"""

from __future__ import annotations

import io
import sys
import sysconfig
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.errors import UsageError
from keylane.foreign_errors import line_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ALWAYS_BY_NAME = {"keylane", "__main__", "__mp_main__", "cloudpickle", "pyspark", "py4j"}
"""Top-level modules that are never sent as code; of `__main__`, cloudpickle sends the functions as code by itself."""
INSTALL_FOLDERS = {"site-packages", "dist-packages"}
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()


_packing = threading.Lock()
"""Held while modules travel by value: cloudpickle knows which by one list for all threads."""


class Cargo(NamedTuple):
    """What travels."""

    data: bytes
    classes: dict[tuple[str, str], type]
    """The classes in it that travel as code, by module and name (cloudpickle keeps no qualified one), where just one
    has that name."""


def pack(what: Any, destination: str) -> bytes:
    """The bytes of `pack_with_classes`."""
    return pack_with_classes(what, destination).data


def pack_with_classes(what: Any, destination: str) -> Cargo:
    """Raises `UsageError` when something of the user's cannot travel to `destination` (which its text names).

    Several threads may call it at once.
    """
    try:
        import cloudpickle
    except ImportError:
        raise UsageError(
            f"sending functions to {destination} needs cloudpickle: pip install 'keylane[process]'"
        ) from None
    try:
        with _packing, _user_modules_by_value(cloudpickle):
            return _packed(cloudpickle, what)
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise UsageError(
            f"the pipeline cannot travel to {destination} ({line_of(error)}): "
            "use the pipeline's `resource` for locks, clients and connections: it is made where the handlers run; what "
            "their closures and globals hold has to travel"
        ) from error


def _packed(cloudpickle: Any, what: Any) -> Cargo:
    classes: dict[tuple[str, str], set[type]] = {}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # the package has no types
        def reducer_override(self, value: object) -> object:
            reduced = super().reducer_override(value)
            if isinstance(value, type) and reduced is not NotImplemented:
                classes.setdefault((value.__module__, value.__name__), set()).add(value)
            return reduced

    file = io.BytesIO()
    Pickler(file).dump(what)
    return Cargo(file.getvalue(), {name: next(iter(some)) for name, some in classes.items() if len(some) == 1})


@contextmanager
def _user_modules_by_value(cloudpickle: Any) -> Iterator[None]:
    already = set(cloudpickle.list_registry_pickle_by_value())
    modules = sys.modules.copy()  # at once: another thread may import meanwhile, and even a list of its items is not
    chosen = [module for name, module in modules.items() if name not in already and _is_users(name, module)]
    for module in chosen:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in chosen:
            cloudpickle.unregister_pickle_by_value(module)


def _is_users(name: str, module: ModuleType) -> bool:
    """Whether this is source code outside the standard library and the folders that pip installs to."""
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py") or name.partition(".")[0] in ALWAYS_BY_NAME or module.__name__ != name:
        return False
    path = Path(file).resolve()
    return not INSTALL_FOLDERS.intersection(path.parts) and not path.is_relative_to(STANDARD_LIBRARY)
