"""The manual pages: data only."""
