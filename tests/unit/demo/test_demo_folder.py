"""What a run keeps, what it may go on with, and which folders it leaves alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keylane.demo.folder import STATE_FILE, RunFolder
from keylane.demo.options import DemoOptions
from keylane.errors import DataFolderError, PeerError, UsageError


def options(tmp_path: Path, **changes: Any) -> DemoOptions:
    return DemoOptions(**({"keep": tmp_path / "run", "results": tmp_path / "results"} | changes))


def test_without_keep_everything_but_the_results_is_gone(tmp_path: Path) -> None:
    with RunFolder(options(tmp_path, keep=None)) as folder:
        assert folder.path.is_dir()
        assert not folder.resumed
        (folder.path / "broker").mkdir()
    assert not folder.path.exists()
    assert folder.results == tmp_path / "results"
    assert folder.results.is_dir()


def test_a_failure_leaves_nothing_either(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder(options(tmp_path, keep=None)) as folder:
        raise ZeroDivisionError
    assert not folder.path.exists()


def test_a_kept_run_is_found_again_with_its_identity(tmp_path: Path) -> None:
    with RunFolder(options(tmp_path, records=500)) as first:
        first.save(replace(first.state, made_topics=True))
    with RunFolder(options(tmp_path)) as second:
        assert second.resumed
        assert second.state == first.state
        assert (second.state.records, second.state.group) == (500, "weather")


def test_defaults_follow_the_ordering(tmp_path: Path) -> None:
    with RunFolder(options(tmp_path, keep=None)) as folder:
        assert folder.state.records == 20_000
    with RunFolder(options(tmp_path, keep=None, ordering="partition")) as folder:
        assert folder.state.records == 3_000


def test_a_run_may_grow_but_neither_shrink_nor_change(tmp_path: Path) -> None:
    with RunFolder(options(tmp_path, records=500)):
        pass
    with RunFolder(options(tmp_path, records=800)) as grown:
        assert grown.state.records == 800
    for changes, text in (
        ({"records": 799}, "holds a run of 800: give that or more"),
        ({"ordering": "partition"}, "holds a run with key"),
        ({"bootstrap": "a:1"}, "holds a run with (embedded)"),
    ):
        with pytest.raises(UsageError) as error:
            RunFolder(options(tmp_path, **changes))
        assert text in str(error.value)


def test_on_a_broker_of_somebody_else_the_group_has_a_name_of_its_own(tmp_path: Path) -> None:
    with RunFolder(options(tmp_path, bootstrap="a:1")) as folder:
        assert folder.state.group == f"keylane-demo-{folder.state.run_id}"


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("x")
    with pytest.raises(DataFolderError, match=r"not a folder of this demo \(no keylane-demo\.json\)"):
        RunFolder(options(tmp_path))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "not readable"),
        ("[]", "not readable"),
        ('{"a": 1}', "not readable"),
        (json.dumps({"run_id": "x", "ordering": "key", "records": 1, "bootstrap": None, "format": 9}), "of format 9"),
    ],
)
def test_a_damaged_state_is_refused_by_name(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / STATE_FILE).write_text(text)
    with pytest.raises(DataFolderError, match=found) as error:
        RunFolder(options(tmp_path))
    assert STATE_FILE in str(error.value)


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(DataFolderError, match="Not a directory: give a folder"):
        RunFolder(options(tmp_path))


def test_results_that_cannot_be_written_are_refused_and_leave_no_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("x")
    with pytest.raises(DataFolderError, match="give a folder to write to"):
        RunFolder(options(tmp_path, keep=None))


def test_an_error_on_a_full_disk_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = PeerError("7 records were not acknowledged")
    with RunFolder(options(tmp_path)) as folder:
        monkeypatch.setattr("keylane.demo.folder.LEAST_FREE_BYTES", 0)
        assert folder.explained(error) is error
        monkeypatch.setattr("keylane.demo.folder.LEAST_FREE_BYTES", 2**62)
        said = str(folder.explained(error))
        assert said.startswith(f"7 records were not acknowledged; the disk of {folder.path} is full (")
