"""LiteRT models: changes carried out on the ONNX translation, and prescriptions on the float file."""
