"""The documentation site: written pages here, and the rest from the manual, the rules and the docstrings."""
