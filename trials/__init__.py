"""Trials: a remedy is carried out on a copy of the quantized model, and measured."""
