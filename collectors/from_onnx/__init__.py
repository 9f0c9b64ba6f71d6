"""ONNX models: read, run and observed with onnxruntime."""
