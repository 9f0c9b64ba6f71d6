"""Diagnosis: from findings to ranked causes, remedies, proofs, a prescription, and the fewest layers in float."""
