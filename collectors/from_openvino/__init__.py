"""OpenVINO models: read from IR files and run by the CPU plugin; an ONNX translation serves simulation and trials."""
