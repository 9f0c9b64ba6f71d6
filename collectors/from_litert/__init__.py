"""LiteRT models: read and run with interpreters; an ONNX translation serves simulation and trials."""
