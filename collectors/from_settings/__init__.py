"""Formats of files that toolchains leave behind: configurations, logs, tables, encodings. One module per format."""
