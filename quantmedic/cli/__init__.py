"""The command line: parses options, calls the API, prints."""
