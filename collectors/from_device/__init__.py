"""Tensors that the device computed, layer by layer: dumps are read and held against the deployed model here."""
