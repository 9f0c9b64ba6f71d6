"""Sections of a report: what each format shows, as plain records; tables for page and Markdown too."""
