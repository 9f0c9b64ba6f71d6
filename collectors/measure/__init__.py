"""Measuring: both models run over the data, and what that adds to a case."""
