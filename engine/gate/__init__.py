"""The gate: a policy applied to a diagnosis."""
