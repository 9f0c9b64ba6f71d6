"""Files that a team keeps: the policy and the history of checks."""
