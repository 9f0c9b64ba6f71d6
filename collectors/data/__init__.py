"""Data sets: where samples come from, how they are checked, prepared and handed out in batches."""
