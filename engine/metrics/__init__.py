"""Task metrics: from what is kept of each sample to one number, its drop, and the interval of that."""
