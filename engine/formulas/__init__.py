"""Formulas: from the accumulators of a case to facts; what a remedy changes, and a quantizer does to a histogram."""
