"""Makes the modules beside this file importable from every test folder.

The tests' own folder must stay off ``sys.path``: its sub-folder ``quantmedic`` would hide the package.
"""

import sys
from importlib.util import LazyLoader, module_from_spec, spec_from_file_location
from pathlib import Path

from hypothesis import settings

for _name in ("models", "checkpoints", "checked", "compared", "pages", "toml_styles", "litert_models", "torch_models"):
    _spec = spec_from_file_location(_name, Path(__file__).with_name(f"{_name}.py"))
    assert _spec is not None and _spec.loader is not None
    if _name == "torch_models":  # imported by the first test that uses it: torch takes seconds, and may be missing
        _spec.loader = LazyLoader(_spec.loader)
    sys.modules[_name] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_name])

# How long an example takes depends on what else the machine does: no test judges by that.
settings.register_profile("quantmedic", deadline=None)
settings.load_profile("quantmedic")
