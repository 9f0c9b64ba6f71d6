"""Facts, rules and their evaluation: pure, independent of any framework."""
