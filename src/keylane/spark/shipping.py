"""How a pipeline travels to its lanes: by cloudpickle, the user's own modules by value.

A user's `app.py` and its neighbours are on the driver's path and, as a rule, on no executor's. Functions and classes
from such modules therefore travel as code. Installed packages travel by name: executors must have them.
"""

from __future__ import annotations

import pickle
import socket
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle

from keylane.errors import UsageError
from keylane.spark.lanes import LaneTask, run_lane
from keylane.spark.outcome import LaneFailure, LaneOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from keylane.options import Pipeline
    from keylane.spark.lanes import MakeRunner

ALWAYS_BY_NAME = {"keylane", "__main__", "__mp_main__", "cloudpickle", "pyspark", "py4j"}
"""Top-level modules that are never sent as code; of `__main__`, cloudpickle sends the functions as code by itself."""
INSTALL_FOLDERS = {"site-packages", "dist-packages"}
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()


def pack(pipeline: Pipeline, make_runner: MakeRunner) -> bytes:
    """The cargo of every lane. Raises `UsageError` when something in the pipeline cannot travel."""
    try:
        with _user_modules_by_value():
            data: bytes = cloudpickle.dumps((pipeline, make_runner))
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise UsageError(
            f"the pipeline cannot travel to Spark's executors ({type(error).__name__}: {error}): "
            "make clients and connections in the pipeline's `resource`, and keep them out of globals that handlers use"
        ) from error
    return data


def open_and_run(shipment: bytes) -> LaneOutcome:
    """The executor's side: runs the lane in the current Spark task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a lane runs inside a Spark task"
    task = pickle.loads(shipment)  # from the driver, through Spark
    assert isinstance(task, LaneTask)
    try:
        pipeline, make_runner = pickle.loads(task.cargo)
    except Exception as error:  # by value, as every failure of a lane: a module that the executor lacks
        missing = UsageError(
            f"the pipeline does not load on {socket.gethostname()} ({type(error).__name__}: {error}): "
            "install the packages that it uses on the executors, with the versions of the driver"
        )
        return LaneOutcome("failed", None, LaneFailure.of(missing))
    return run_lane(task, pipeline, make_runner, context.attemptNumber())


@contextmanager
def _user_modules_by_value() -> Iterator[None]:
    already = set(cloudpickle.list_registry_pickle_by_value())
    chosen = [module for name, module in list(sys.modules.items()) if name not in already and _is_users(name, module)]
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
