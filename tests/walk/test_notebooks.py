"""The notebooks of docs/notebooks run, and print what they are stored with.

`python -m tests.walk.test_notebooks` runs them and stores what they print.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.walk.installed import ROOT
from tests.walk.pages import differs

nbformat: Any = pytest.importorskip("nbformat")
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "80"}
LONGEST_S = 300  # for one cell, on a busy machine


def run(path: Path, folder: Path) -> Any:
    """The notebook with what its cells print now."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    os.environ.update(QUIET)
    NotebookClient(notebook, timeout=LONGEST_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":  # start-up lines and progress bars
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def printed(notebook: Any) -> list[str]:
    """By cell, what it prints."""
    texts = [
        [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    return ["\n".join(text) for text in texts]


def test_there_are_three_and_all_are_stored_with_what_they_print() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["change_a_saved_model", "half_the_memory_in_fit", "why_does_it_not_fit"]
    for path in NOTEBOOKS:
        stored = nbformat.read(path, as_version=4)
        nbformat.validate(stored)
        assert stored.cells[0].source.startswith("# ")
        assert any(printed(stored))
        assert path.stat().st_size < 100_000


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored(path: Path, tmp_path: Path) -> None:
    """Of a long text the first paragraph: in which steps a plan computes again may differ, as its search ends by the clock."""
    for shown, now in zip(printed(nbformat.read(path, as_version=4)), printed(run(path, tmp_path)), strict=True):
        first = [text.strip().split("\n\n")[0] for text in (shown, now)]
        assert differs(*first) == "", now


if __name__ == "__main__":
    import tempfile

    for one in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as scratch:
            nbformat.write(run(one, Path(scratch)), one)
