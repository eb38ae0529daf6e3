"""A plugin of pytest: which functions of `src` each test enters, into the file that `KEYLANE_REACH` names."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mutants.aims import SRC

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import CodeType, FrameType

REACHED: dict[str, tuple[float, set[CodeType]]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    entered: set[CodeType] = set()

    def enter(frame: FrameType, event: str, argument: object) -> None:
        entered.add(frame.f_code)

    begin = time.process_time()
    threading.settrace(enter)
    sys.settrace(enter)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)
        REACHED[item.nodeid] = (time.process_time() - begin, entered)


def pytest_unconfigure() -> None:
    packages = f"{SRC}{os.sep}"
    found = {
        test: (seconds, sorted({_name(code) for code in entered if code.co_filename.startswith(packages)}))
        for test, (seconds, entered) in REACHED.items()
    }
    Path(os.environ["KEYLANE_REACH"]).write_text(json.dumps(found))


def _name(code: CodeType) -> str:
    module = ".".join(Path(code.co_filename).relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    return f"{module}:{code.co_qualname.partition('.<locals>')[0]}"
