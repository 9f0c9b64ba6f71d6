"""The case and its facts: everything measured of one pair of models, as typed records."""
