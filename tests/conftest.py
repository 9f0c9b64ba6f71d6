"""Makes ``models`` importable from every test folder.

The tests' own folder must stay off ``sys.path``: its sub-folder ``quantmedic`` would hide the package.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("models", Path(__file__).with_name("models.py"))
assert _spec is not None and _spec.loader is not None
sys.modules["models"] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["models"])
