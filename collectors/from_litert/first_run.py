"""The first run of LiteRT models, in a process of its own: an interpreter that crashes takes its process along."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from quantmedic.collectors.native.child import run_child
from quantmedic.collectors.native.runs import TimeLimitError, current_limit
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
        TimeLimitError: It takes longer than the limit.
    """
    limit = current_limit()
    with tempfile.TemporaryFile() as words:
        try:
            names = [str(path.resolve()) for path in paths]
            status = run_child(_CHILD, names, stdout=words, seconds=limit)
        except subprocess.TimeoutExpired:
            raise TimeLimitError(
                f"{paths[_read_last_begun(words) or 0]}: its first run, on zeros", limit or 0.0
            ) from None
        except OSError:  # without an interpreter of Python the files cannot be tried
            return
        begun = _read_last_begun(words)
    if status == 0 or begun is None:
        return
    raise ModelError(
        "the LiteRT interpreter crashes on the model",
        where=f"{paths[begun]}: its process ended with {status}",
        help="does it run by itself? convert it again; quantmedic show --environment names the ai-edge-litert",
    )


def _read_last_begun(words: IO[bytes]) -> int | None:
    """The file that the child began last; None before the first one."""
    words.seek(0)
    lines = words.read().split()
    return int(lines[-1]) if lines else None
