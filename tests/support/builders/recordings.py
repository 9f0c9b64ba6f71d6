"""Where the files lie that real tools left behind."""

from pathlib import Path

RECORDINGS = Path(__file__).parents[2] / "recordings"
