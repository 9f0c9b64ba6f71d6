"""Tests of the documentation: its builder is no part of the installed package, and is found in the repository."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
