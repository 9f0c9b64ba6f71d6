"""The notebooks run from the first cell to the last, as they stand."""

from pathlib import Path

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.thorough

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
#: What the output of a notebook has to say.
SAYS = {
    "onnx": "preprocessing-scale-mismatch",
    "torchao": "too-few-weight-bits",
    "detector": "erased-concatenation-operand",
}


def test_each_is_known() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == SAYS.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("name", SAYS)
def test_it_runs_and_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "saved with outputs, which nobody can check"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    cards = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any(SAYS[name] in card for card in cards), cards
