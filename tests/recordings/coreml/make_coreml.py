"""Writes the packages of this folder with coremltools: pip install coremltools scikit-learn, then run this here.

A convolution and a linear layer of random weights, as coremltools compresses them in its ways; ``expected.npz`` holds
what its own ``decompress_weights`` makes of them. Made with coremltools 9.0 on Linux.
"""

import shutil
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as opt
import numpy as np
from coremltools.converters.mil import Builder as mb

HERE = Path(__file__).parent
RNG = np.random.default_rng(0)
KERNEL = RNG.normal(0, 0.2, (8, 4, 3, 3)).astype(np.float32)
MATRIX = RNG.normal(0, 0.2, (16, 32)).astype(np.float32)
BIAS = RNG.normal(0, 0.1, 16).astype(np.float32)


def network(target):
    """The network for one version of iOS."""

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 4, 2, 2))], opset_version=target)
    def program(x):
        x = mb.relu(x=mb.conv(x=x, weight=mb.const(val=KERNEL, name="conv_weight"), pad_type="same", name="conv"))
        x = mb.reshape(x=x, shape=(1, 32))
        return mb.linear(x=x, weight=mb.const(val=MATRIX, name="fc_weight"), bias=BIAS, name="fc")

    return ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=target,
        compute_precision=ct.precision.FLOAT32,
    )


def linear(model, joint=False, **how):
    """Quantized to integers."""
    config = opt.OptimizationConfig(global_config=opt.OpLinearQuantizerConfig(weight_threshold=0, **how))
    return opt.linear_quantize_weights(model, config, joint_compression=joint)


def palettized(model, joint=False, **how):
    """Entries of tables."""
    config = opt.OptimizationConfig(global_config=opt.OpPalettizerConfig(weight_threshold=0, mode="kmeans", **how))
    return opt.palettize_weights(model, config, joint_compression=joint)


def pruned(model):
    """Half of the weights are 0."""
    config = opt.OptimizationConfig(global_config=opt.OpMagnitudePrunerConfig(weight_threshold=0, target_sparsity=0.5))
    return opt.prune_weights(model, config)


def constants(model):
    """Weights by the name of their layer, of a decompressed model."""
    return {
        op.name: op.weight.val
        for op in model._mil_program.functions["main"].operations
        if op.op_type in ("conv", "linear")
    }


def save(model, name):
    """Write a package without what the compression adds beside it."""
    path = HERE / f"{name}.mlpackage"
    shutil.rmtree(path, ignore_errors=True)
    model.save(str(path))


if __name__ == "__main__":
    old, new = network(ct.target.iOS16), network(ct.target.iOS18)
    models = {
        "int8_16": linear(old, mode="linear_symmetric"),
        "int8_16_offset": linear(old, mode="linear", granularity="per_tensor"),
        "int8_offset": linear(new, mode="linear"),
        "int4_blocks": linear(new, mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=4),
        "palette4_16": palettized(old, nbits=4),
        "palette3": palettized(new, nbits=3),
        "palette2_groups": palettized(new, nbits=2, granularity="per_grouped_channel", group_size=4),
        "sparse_16": pruned(old),
        "sparse": pruned(new),
        "sparse_int8": linear(pruned(new), joint=True, mode="linear_symmetric"),
        "sparse_palette4": palettized(pruned(new), joint=True, nbits=4),
    }
    save(new, "float")
    found = {}
    for name, model in models.items():
        save(model, name)
        plain = opt.decompress_weights(ct.models.MLModel(str(HERE / f"{name}.mlpackage"), skip_model_load=True))
        found |= {f"{name}/{layer}": values for layer, values in constants(plain).items()}
    np.savez_compressed(HERE / "expected.npz", **found)
