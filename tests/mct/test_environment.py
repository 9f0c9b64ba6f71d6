"""The real toolkit runs here: without that, every other test of this folder would prove nothing."""

import pytest

pytestmark = pytest.mark.thorough

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/run")


def test_a_small_network_is_quantized_and_runs(net, batches) -> None:
    quantized, _ = mct.ptq.pytorch_post_training_quantization(net, lambda: ([batch] for batch in batches))
    with torch.no_grad():
        float_out, quantized_out = net(batches[0]), quantized(batches[0])
    noise = (float_out - quantized_out).square().sum()
    assert 0 < noise < 1e-2 * float_out.square().sum()
    assert {"conv1_bn", "act_activation_holder_quantizer"} <= {name for name, _ in quantized.named_children()}
