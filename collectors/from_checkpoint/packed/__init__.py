"""Quantized layers as tools pack them into tensors: one module per format."""
