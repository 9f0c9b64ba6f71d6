"""Quantized layers as tools pack them into tensors: in words, in bytes, as small floats."""
