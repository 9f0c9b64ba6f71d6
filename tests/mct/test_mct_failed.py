"""Targets that the real toolkit cannot meet: what it says is read, and the advice makes a model."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/nightly")

import quantmedic  # noqa: E402
from quantmedic.engine.diagnosis.snippets import render_snippets  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.nightly]

TARGETS: dict[str, dict[str, float]] = {
    "weights": {"weights_memory": 10.0},
    "two": {"weights_memory": 10.0, "activation_memory": 10.0},
    "activations": {"activation_memory": 10.0},
}


@pytest.mark.source(
    "mct-target-unreachable",
    "mct-target-not-meant",
    "mct-target-one-resource",
    "mct-target-softer",
    "mct-target-candidates",
    "mct-target-compression",
)
@pytest.mark.parametrize("name", TARGETS)
def test_an_impossible_target_leads_to_a_model(name: str, net: Any, batches: list[Any], tmp_path: Path) -> None:
    def gen() -> Any:
        return ([batch] for batch in batches)

    target = mct.core.ResourceUtilization(**TARGETS[name])
    with pytest.raises(Exception) as caught:
        mct.ptq.pytorch_post_training_quantization(
            net, gen, target_resource_utilization=target, core_config=mct.core.CoreConfig()
        )
    log = tmp_path / "quantize.log"
    log.write_text(f"{type(caught.value).__name__}: {caught.value}\n", encoding="utf-8")
    first = quantmedic.diagnose(net, toolchain_logs=[log]).causes[0]
    assert (first.cause, first.rules) == ("mixed-precision-target-unreachable", ("F002",))
    advised = {remedy.id: remedy for remedy in first.remedies}
    assert advised.keys() == {"loosen-target", "quantize-without-target", "add-candidates", "restrict-one-resource"}
    for remedy in advised.values():
        texts = zip(remedy.snippets, render_snippets(remedy, first.rules), strict=True)
        for code in [text for snippet, text in texts if snippet.toolchain == "Sony MCT"]:
            names: dict[str, Any] = {"mct": mct, "model": net, "gen": gen}
            exec(compile(code, f"{remedy.id}.py", "exec"), names)
            with torch.no_grad():
                assert torch.isfinite(names["quantized"](batches[0])).all()
