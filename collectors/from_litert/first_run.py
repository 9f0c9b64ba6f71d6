"""The first run of LiteRT models, in a process of its own: an interpreter that crashes takes its process along."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from quantmedic.engine.errors import ModelError

#: Runs every file on zeros, as an application would. Errors that Python raises are reported by later runs.
_CHILD = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
for number, path in enumerate(sys.argv[1:]):
    print(number, flush=True)
    try:
        interpreter = Interpreter(path)
        interpreter.allocate_tensors()
        for each in interpreter.get_input_details():
            interpreter.set_tensor(each["index"], np.zeros(each["shape"], each["dtype"]))
        interpreter.invoke()
    except Exception:
        pass
"""


def require_survival(paths: Sequence[Path]) -> None:
    """Run files that passed the checks once; costs 0.15 s beside the runs themselves.

    Raises:
        ModelError: The interpreter crashes on one of them.
    """
    line = [sys.executable, "-P", "-c", _CHILD, *(str(path.resolve()) for path in paths)]
    try:
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError:  # without an interpreter of Python the files cannot be tried
        return
    begun = done.stdout.split()
    if done.returncode == 0 or not begun:
        return
    raise ModelError(
        "the LiteRT interpreter crashes on the model",
        where=f"{paths[int(begun[-1])]}: its process ended with {done.returncode}",
        help="does it run by itself? convert it again; quantmedic doctor tells the version of ai-edge-litert",
    )
