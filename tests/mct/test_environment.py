"""The real toolkit runs here: without that, every other test of this folder would prove nothing."""

import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/run")


class Net(torch.nn.Module):
    """Convolution with batch norm, SiLU, concatenation, addition and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = torch.nn.BatchNorm2d(8)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.act = torch.nn.SiLU()
        self.conv3 = torch.nn.Conv2d(16, 8, 3, padding=1)
        self.fc = torch.nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.bn1(self.conv1(x)))
        b = self.act(self.conv2(a))
        return self.fc((self.conv3(torch.cat([a, b], 1)) + a).mean((2, 3)))


def test_a_small_network_is_quantized_and_runs() -> None:
    torch.manual_seed(0)
    model = Net().eval()
    batches = [torch.randn(4, 3, 16, 16) for _ in range(4)]
    quantized, _ = mct.ptq.pytorch_post_training_quantization(model, lambda: ([batch] for batch in batches))
    with torch.no_grad():
        float_out, quantized_out = model(batches[0]), quantized(batches[0])
    noise = (float_out - quantized_out).square().sum()
    assert 0 < noise < 1e-3 * float_out.square().sum()
    assert {"conv1_bn", "act_activation_holder_quantizer"} <= {name for name, _ in quantized.named_children()}
