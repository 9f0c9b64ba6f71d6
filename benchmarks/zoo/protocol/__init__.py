"""The protocol: what reports said, scores of it, and a ledger that keeps the first run of a fresh seed."""
