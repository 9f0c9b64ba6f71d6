"""Integer kernels without VNNI saturate, and are not measured where exact ones are asked for."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from builders.openvino_models import openvino

from quantmedic.collectors.measure.host import EXACT_KERNELS

pytestmark = pytest.mark.thorough

#: Run by itself: which instructions kernels use is settled when the first one is made. The processor of the machine
#: that runs it may have VNNI, the one that is asked for has not.
PROGRAM = """
import sys
import numpy as np
import openvino
from openvino import opset13 as ops
from quantmedic.collectors.measure import host
from quantmedic.collectors.from_openvino.openvino_models import open_models
from quantmedic.collectors.data.batches import Batch

host.cpu_flags = lambda: frozenset({"avx2"})

def net(quantized):
    x = ops.parameter([-1, 64], np.float32, name="x")
    weights = ops.constant(np.full((8, 64), 127, np.float32))
    read = x
    if quantized:
        codes = ops.convert(ops.constant(np.full((8, 64), 127, np.int8)), "f32")
        weights = ops.multiply(codes, ops.constant(np.ones((8, 1), np.float32)))
        read = ops.fake_quantize(x, *[ops.constant(np.float32(end)) for end in (0, 255, 0, 255)], 256)
    return openvino.Model([ops.result(ops.matmul(read, weights, False, True))], [x], "net")

for name, quantized in (("float.xml", False), ("int8.xml", True)):
    openvino.save_model(net(quantized), name, compress_to_fp16=False)
models = open_models(*map(__import__("pathlib").Path, ("float.xml", "int8.xml")))
batch = Batch({"x": np.full((2, 64), 255, np.float32)}, None)
floats, found = models.float_runner(1)(batch)[0], models.quantized_runner(1)(batch)[0]
view = models.view(dict(enumerate(models.pairs)), batch, 1)
facts = models.kernel_facts(batch, view.read_tensors(batch), 1)
print(float(found.max() / floats.max()), facts.get("integer_kernel_noise"), sorted({*models.kernels(1).values()}))
"""


def ratio_of_outputs(folder: Path, exact: str) -> tuple[float, str]:
    """Of the deployed model over the float one, and the kernels that the plugin chose."""
    env = {**os.environ, EXACT_KERNELS: exact, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ratio, _, kernels = done.stdout.strip().split(" ", 2)
    return float(ratio), kernels


@pytest.mark.nightly
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="only x86 saturates")
def test_sums_saturate_without_vnni_but_where_exact_kernels_are_asked_for(tmp_path):
    openvino()
    deployed, kernels = ratio_of_outputs(tmp_path, "")
    assert deployed < 0.6 and "integer" in kernels
    exact, kernels = ratio_of_outputs(tmp_path, "1")
    # Which kernels an application gets is told as before.
    assert exact == pytest.approx(1.0, rel=1e-5) and "integer" in kernels
