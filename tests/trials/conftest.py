"""Makes ``bench`` importable here; the folder itself stays off ``sys.path``."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("bench", Path(__file__).with_name("bench.py"))
assert _spec is not None and _spec.loader is not None
sys.modules["bench"] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["bench"])
