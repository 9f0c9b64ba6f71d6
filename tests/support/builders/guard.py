"""Processes under the guard of ``tests/support/watched``, which notes what they must not do."""

import os
from pathlib import Path

#: What watches every Python process that finds it in its path.
WATCHED = Path(__file__).parents[1] / "watched"


def guard_variables(notes: Path, *allowed: Path) -> dict[str, str]:
    """Variables of a process that is watched, and of all that it starts.

    Args:
        notes: The file that holds a line for each thing that it must not do.
        allowed: What it may write to: files, and all that lies in folders.
    """
    return {
        "QUANTMEDIC_GUARD": str(notes),
        "QUANTMEDIC_GUARD_ALLOWED": ":".join(map(str, allowed)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(WATCHED), os.environ.get("PYTHONPATH")])),
    }
