"""The notebook runs from top to bottom, as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebook's tools are not installed")
nbclient = pytest.importorskip("nbclient", reason="the notebook's tools are not installed")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "keylane.ipynb"
MINUTES = 4
"""For one cell, on a busy machine; all of it takes one or two."""


@pytest.mark.full
def test_the_notebook_runs_and_shows_a_kill_that_loses_nothing(java: None, tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=MINUTES * 60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "0 lost" in said
    assert "lane 0: started 2 time(s)" in said
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2, "pictures"
