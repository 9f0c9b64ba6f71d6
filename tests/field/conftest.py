"""Makes ``patients`` importable from the tests of this folder, as ``models`` is from all."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("patients", Path(__file__).with_name("patients.py"))
assert _spec is not None and _spec.loader is not None
sys.modules["patients"] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["patients"])
