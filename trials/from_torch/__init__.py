"""Changes carried out on a quantized torch module while it runs."""
