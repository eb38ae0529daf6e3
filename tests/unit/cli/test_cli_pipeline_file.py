"""The one pipeline of a file is found; everything else is a sentence with the file, the line and the way out."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keylane.cli.pipeline_file import load_pipeline, place_in_notes
from keylane.errors import UsageError

KAFKA = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}

GOOD = f"""import keylane as kl

def handle(record: kl.Record) -> None: ...

flights = kl.Pipeline(kafka={KAFKA}, topics=["flights"], handler=handle)
"""


@pytest.fixture(autouse=True)
def modules_as_before() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "weather_pipeline.py"


def test_the_only_pipeline_needs_no_name(file: Path) -> None:
    file.write_text(GOOD)
    assert list(load_pipeline(str(file))[1].subscription) == ["flights"]


def test_a_second_name_for_the_same_pipeline_is_no_second_pipeline(file: Path) -> None:
    file.write_text(GOOD + "alias = flights\n")
    assert list(load_pipeline(str(file))[1].subscription) == ["flights"]


def test_several_need_a_name(file: Path) -> None:
    file.write_text(GOOD + GOOD.replace("flights =", "other =").replace('["flights"]', '["other"]'))
    assert list(load_pipeline(f"{file}:other")[1].subscription) == ["other"]
    with pytest.raises(UsageError) as error:
        load_pipeline(str(file))
    assert str(error.value) == f"{file} has several pipelines (flights, other): give one as {file}:flights"


def test_a_neighbour_can_be_imported_and_main_does_not_run(file: Path) -> None:
    (file.parent / "the_neighbour.py").write_text(GOOD)
    file.write_text("from the_neighbour import flights\nif __name__ == '__main__':\n    raise SystemExit(3)\n")
    assert list(load_pipeline(str(file))[1].subscription) == ["flights"]


@pytest.mark.parametrize("name", ["json.py", "with-dash.py", "a:b.py"])
def test_odd_file_names_work(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(GOOD)
    load_pipeline(str(tmp_path / name))
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("import keylane\nx = undefined\n", 2, "NameError: name 'undefined' is not defined"),
        ("import keylane\n\n\ndef broken(:\n", 4, "SyntaxError: "),
        ("import no_such_module\n", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f():\n    raise SystemExit('bye')\nf()\n", 2, "SystemExit: bye"),
        ("assert False\n", 1, "AssertionError"),
        (GOOD.replace('["flights"]', "[]"), 5, "topics=[]: give a list of topic names"),
    ],
)
def test_an_error_in_the_file_is_told_with_its_line(file: Path, text: str, line: int, said: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        load_pipeline(str(file))
    assert str(error.value).startswith(f"{file}:{line}: {said}")
    assert file.stem not in sys.modules


def test_an_error_in_a_neighbour_names_the_neighbour(file: Path) -> None:
    neighbour = file.parent / "other_neighbour.py"
    neighbour.write_text("\n\n1 / 0\n")
    file.write_text("import other_neighbour\n")
    with pytest.raises(UsageError, match=re.escape(f"{neighbour}:3: ZeroDivisionError")):
        load_pipeline(str(file))


@pytest.mark.parametrize(
    ("text", "suffix", "said"),
    [
        (None, "", "no such file: give the Python file that has the pipeline"),
        ("x = 1\n", "", "has no keylane.Pipeline: assign one to a name at the top level of the file"),
        ("x = 1\n", ":x", "has no keylane.Pipeline named 'x': it has none"),
        (GOOD, ":x", "has no keylane.Pipeline named 'x': it has flights"),
    ],
)
def test_what_is_not_there_is_said(file: Path, text: str | None, suffix: str, said: str) -> None:
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(said)):
        load_pipeline(f"{file}{suffix}")


def test_the_line_is_found_in_the_traceback_that_another_process_sent(file: Path) -> None:
    error = ValueError("no good")
    text = 'Traceback:\n  File "{}", line 7, in handle\n  File "{}", line 99, in helper\n'
    assert place_in_notes(file, error) == str(file)
    error.add_note(text.format(file, json.__file__))
    assert place_in_notes(file, error) == f"{file}:7"


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match=r"notes\.txt: not a Python file"):
        load_pipeline(str(tmp_path / "notes.txt"))
