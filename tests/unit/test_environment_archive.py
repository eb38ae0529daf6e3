"""What goes into the archive for YARN's nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from kit import environment_archive

if TYPE_CHECKING:
    import pytest

REQUIRES = {
    "first": [
        'second>=1; python_version >= "3"',
        'third; python_version < "3"',
        "fourth[more]>2",
        'fifth; extra == "x"',
    ],
    "second": None,
    "fourth": ['first; sys_platform != "nowhere"'],
}


def test_requirements_with_markers_come_along_where_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_archive, "distribution", lambda name: SimpleNamespace(requires=REQUIRES[name]))
    assert environment_archive._needed(["first"]) == {"first", "second", "fourth"}
