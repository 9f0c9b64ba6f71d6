"""Layers of two checkpoints: their stored weights against the float ones, and the gains of their channels."""
