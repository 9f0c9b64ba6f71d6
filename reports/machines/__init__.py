"""Reports for machines: JSON, JUnit, GitHub."""
