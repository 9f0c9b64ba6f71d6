"""Sections of a report: what each format shows, as plain records."""
