"""The contract of report.json and of ``check``: records and exit codes, and nothing that makes them."""
