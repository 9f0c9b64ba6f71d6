"""Operators that ONNX and onnxruntime define, and their attributes: words that no network owns."""

from collections.abc import Iterator

import onnx.defs

#: Operators of onnxruntime's own domain, which has no list that can be read without it.
RUNTIME_OPERATORS = """
    Attention BiasGelu BiasSplitGelu BiasSoftmax ConvTransposeWithDynamicPads CropAndResize
    DecoderMaskedMultiHeadAttention DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul EmbedLayerNormalization
    FastGelu FusedConv FusedGemm
    FusedMatMul FusedMatMulActivation GatedRelativePositionBias GatherBlockQuantized Gelu GemmFastGelu GemmFloat8
    GreedySearch GridSample GroupNorm GroupQueryAttention Inverse MatMulBnb4 MatMulInteger16 MatMulIntegerToFloat
    MatMulNBits MaxpoolWithMask MultiHeadAttention NGramRepeatBlock NhwcConv NhwcFusedConv NhwcMaxPool
    PackedAttention PackedMultiHeadAttention QAttention QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool
    QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax
    QLinearWhere QMoE QOrderedAttention QOrderedGelu QOrderedLayerNormalization QOrderedMatMul QuantizeLinear QuickGelu
    RelativePositionBias RotaryEmbedding SimplifiedLayerNormalization SkipGroupNorm SkipLayerNormalization
    SkipSimplifiedLayerNormalization SparseAttention Trilu UnfoldTensor ReorderInput ReorderOutput
"""


def operator_words() -> Iterator[str]:
    """Names of operators, each with those of its attributes."""
    yield RUNTIME_OPERATORS
    for schema in onnx.defs.get_all_schemas_with_history():
        yield f"{schema.name} {' '.join(schema.attributes)}"
