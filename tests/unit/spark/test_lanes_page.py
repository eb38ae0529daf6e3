"""docs/lanes.md says what the code does, where it can be compared."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from keylane.consumer.snapshot import Snapshot
from keylane.spark.lane_record import LaneStatus
from keylane.spark.progress import ProgressReporter, QueryName
from keylane.spark.start import start

PAGE = Path(__file__).parents[3] / "docs" / "lanes.md"
QUERY = QueryName(id="an-id", run_id="a-run", name=None, group="weather", topics=("flights",))


def test_every_option_of_start_is_on_the_page_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    options = {
        name: one.default
        for name, one in inspect.signature(start).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert [name for name, _ in rows] == list(options)
    said = {name: default.strip("`").replace(",", "") for name, default in rows}
    in_figures = {name: str(default) for name, default in options.items() if isinstance(default, int)}
    assert {name: said[name] for name in in_figures} == in_figures
    assert {default for name, default in options.items() if name not in in_figures} == {None, ()}  # said in words


def test_progress_has_what_the_page_shows() -> None:
    shown = re.search(r"^```python\n(\{.*?^\})\n```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    example = ast.literal_eval(shown[1])
    made = ProgressReporter(QUERY).report(Snapshot(), [], [], now=0.0, wall_clock=0.0).to_dict()
    assert set(example) == set(made)
    assert set(example["sources"][0]) == set(made["sources"][0])
    assert set(example["lanes"][0]) == set(LaneStatus(0, "launching", None, None, None, 1, 0, ()).to_dict())
