"""Two diagnoses against each other: what healed and what broke in between."""
