"""Here is tested what is measured. Dividing the loss and simulating remedies takes longer, and is tested elsewhere."""

from collections.abc import Iterator

import pytest

from quantmedic.api import collect


@pytest.fixture(scope="module", autouse=True)
def _only_measured(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("attributed") is None:
            patch.setattr(collect, "simulate_remedies", lambda case, measurement: case)
        yield
