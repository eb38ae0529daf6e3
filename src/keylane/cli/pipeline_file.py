"""The pipeline in a user's file: `pipeline.py`, or `pipeline.py:name` when the file has several.

The file is imported as a module of its own name with its folder on the path, so it may import its neighbours, and what
is under `if __name__ == "__main__":` does not run. Whatever goes wrong in it is told with the file and the line.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from keylane.errors import UsageError
from keylane.foreign_errors import line_of, one_line
from keylane.pipeline import Pipeline

if TYPE_CHECKING:
    from types import ModuleType


NOT_USERS = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))


def load_pipeline(target: str) -> tuple[Path, Pipeline]:
    """The file and the pipeline that `FILE` or `FILE:NAME` names. Raises `UsageError`."""
    path, name = _split(target)
    if not path.is_file():
        raise UsageError(f"{path}: no such file: give the Python file that has the pipeline")
    module = _import(path)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if name is not None:
        if name not in found:
            raise UsageError(f"{path} has no keylane.Pipeline named {name!r}: {_known(found)}")
        return path, found[name]
    distinct = {id(pipeline): key for key, pipeline in found.items()}
    if not distinct:
        raise UsageError(f"{path} has no keylane.Pipeline: assign one to a name at the top level of the file")
    if len(distinct) > 1:
        names = list(distinct.values())
        raise UsageError(f"{path} has several pipelines ({', '.join(names)}): give one as {path}:{names[0]}")
    return path, next(iter(found.values()))


def _split(target: str) -> tuple[Path, str | None]:
    """A file may have a colon in its name; a name has to be one that Python can give."""
    file, colon, name = target.rpartition(":")
    if colon and not Path(target).exists() and name.isidentifier():
        return Path(file), name
    return Path(target), None


def _known(found: dict[str, Pipeline]) -> str:
    return f"it has {', '.join(found)}" if found else "it has none"


def _import(path: Path) -> ModuleType:
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"keylane_run_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file: give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[name]
        raise UsageError(f"{place_in(path, error)}: {_said(error)}") from error
    return module


def place_in(path: Path, error: BaseException) -> str:
    """`file:line` of the error: of the innermost frame in code of the user's, else the file alone."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_short(Path(error.filename), path)}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if _is_users(file):
            return f"{_short(file, path)}:{frame.lineno}"
    return str(path)


def place_in_notes(path: Path, error: BaseException) -> str:
    """The same for an error that came from another process, whose traceback is a note of text."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', "\n".join(getattr(error, "__notes__", [])))
    for file, line in reversed(frames):
        if _is_users(Path(file)):
            return f"{_short(Path(file), path)}:{line}"
    return str(path)


def _is_users(file: Path) -> bool:
    """Not keylane's, not the standard library's (whose frozen modules have no path), not an installed package's."""
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    return file.is_absolute() and not installed and not any(file.is_relative_to(folder) for folder in NOT_USERS)


def _short(file: Path, path: Path) -> Path:
    """As the user named it, when it is the file itself."""
    return path if file == path.resolve() else file


def _said(error: BaseException) -> str:
    if isinstance(error, UsageError):
        return one_line(error)
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    return line_of(error)
