"""The interactive page and its data."""
