"""Sections of a report: the blocks that page, Markdown and console render, and what they share."""
