from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.run_folders import HOSTILE, build_run
from whet.integrations.notebook import Figure, in_notebook

CELL = """
import sys
sys.path.insert(0, {root!r})
from whet.integrations.notebook import NotebookView, in_notebook
from whet.runs.folder import RunFolder
assert in_notebook()
view = NotebookView()
for record in RunFolder.open({run!r}).records():
    view.listen(record)
view.close()
"""


def test_a_run_is_shown_as_curves_verdict_and_a_row_an_evaluation(tmp_path: Path) -> None:
    page = Figure(build_run(tmp_path / "run").records())._repr_html_()
    tree = ElementTree.fromstring(page)
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}svg")) == 2
    assert len(tree.findall(".//tr")) == 1 + 12
    assert "Healthy" in page


def test_what_is_shown_needs_no_script_and_escapes_labels(tmp_path: Path) -> None:
    page = Figure(build_run(tmp_path / "run", hostile=True).records())._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert HOSTILE not in page


def test_nothing_yet_is_shown_as_nothing(tmp_path: Path) -> None:
    figure = Figure(build_run(tmp_path / "run", evaluations=0, finished=False).records())
    assert "<table" not in figure._repr_html_()
    assert repr(figure) == "no evaluation yet"


def test_without_html_the_evaluations_are_lines(tmp_path: Path) -> None:
    assert re.match(
        r"step 20  validation loss 0\.\d{4}  accuracy 0\.\d{4}", repr(Figure(build_run(tmp_path / "r").records()))
    )


def test_a_plain_python_is_no_notebook() -> None:
    assert not in_notebook()
    code = "import sys, whet.integrations.notebook; assert not {'IPython', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_real_notebook_keeps_what_was_drawn(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="notebooks are tested where nbclient and ipykernel are installed")
    nbclient = pytest.importorskip("nbclient", reason="notebooks are tested where nbclient is installed")
    pytest.importorskip("ipykernel", reason="notebooks are tested where ipykernel is installed")
    run = build_run(tmp_path / "run").path
    source = CELL.format(root=str(Path(__file__).parents[2] / "src"), run=str(run))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbclient.NotebookClient(notebook, timeout=60).execute()
    outputs = notebook.cells[0].outputs
    assert [output.output_type for output in outputs] == ["display_data"]
    assert "<svg" in outputs[0].data["text/html"]
    assert "step 240" in outputs[0].data["text/html"]
