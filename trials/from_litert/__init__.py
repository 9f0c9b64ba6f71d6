"""Changes carried out on the ONNX translation of a quantized LiteRT model."""
