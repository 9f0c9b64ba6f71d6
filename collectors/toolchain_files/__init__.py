"""Files that toolchains leave behind: recognized by known formats, read safely, and merged into a case."""
