"""Models of another runtime, which run twice: as they are, and in an ONNX translation for simulation and trials."""
