"""What several test files build: models, checkpoints, cases and diagnoses.

Pytest finds this package through the option ``pythonpath`` in ``pyproject.toml``. The tests' own folder stays off
``sys.path``: its sub-folder ``quantmedic`` would hide the package. Only tests of PyTorch modules import
``builders.torch_models``, because torch is optional and takes seconds to load.
"""
