"""Layers of checkpoints as tools pack them: in words, in bytes, as small floats (others: ``pair/quantizer.py``)."""
