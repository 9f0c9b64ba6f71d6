"""Changes carried out on a copy of a quantized ONNX model."""
