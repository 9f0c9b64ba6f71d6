"""Checkpoints: weights against weights, nothing is run."""
