"""What holds for all tests."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("builders")

# How long an example takes depends on what else the machine does: no test judges by that.
settings.register_profile("quantmedic", deadline=None)
settings.load_profile("quantmedic")
