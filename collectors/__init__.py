"""Collectors measure models and data sets and return a case."""
