"""Diagnosis: from findings to ranked causes, remedies, proofs and a prescription."""
