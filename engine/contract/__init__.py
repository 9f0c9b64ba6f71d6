"""The contract of report.json: its records, and nothing that makes them."""
