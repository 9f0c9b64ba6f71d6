"""OpenVINO models: changes of the ONNX translation."""
