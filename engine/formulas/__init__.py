"""Formulas: from the accumulators of a case to facts, and from facts to statistics."""
