"""LiteRT models: changes of the ONNX translation, what is learned in the file, and prescriptions on the float file."""
