"""The rule base: data only."""
