"""What to do first names the layers that its title speaks of."""

import pytest

from quantmedic.reports.sections.first_step import FirstStep, _layers_text

BLOCK = tuple(f"model.layers.2.{name}" for name in ("mlp.down_proj", "mlp.up_proj", "self_attn.q_proj"))


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (BLOCK, "3 layers of model.layers.2"),
        (BLOCK[:1], BLOCK[0]),
        (("/features/1/Conv", "/features/1/conv/Conv"), "2 layers of /features/1"),
        (("model.layers.12.q", "model.layers.1.q"), "model.layers.12.q, model.layers.1.q"),
        (("stem", "head", "neck", "tail", "end"), "stem, head, neck and 2 more"),
        (("conv1", "conv10"), "conv1, conv10"),
        ((), ""),
    ],
)
def test_layers_of_one_part_are_told_by_that_part(layers: tuple[str, ...], told: str) -> None:
    assert _layers_text(layers) == told


def test_the_title_stands_with_the_layers() -> None:
    step = FirstStep("Keep named layers in float", "", None, "W030", where=_layers_text(BLOCK))
    assert step.named == "Keep named layers in float: 3 layers of model.layers.2"
    assert FirstStep("Per-channel weights", "", None, "W001").named == "Per-channel weights"
