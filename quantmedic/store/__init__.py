"""The policy of a team: found, read, and its mistakes explained."""
