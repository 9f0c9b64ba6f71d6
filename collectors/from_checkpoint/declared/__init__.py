"""What a configuration declares of a quantized checkpoint, against what its tensors are."""
