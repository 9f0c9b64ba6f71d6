"""Task metrics: what is kept of each sample's outputs and labels, and how outputs and labels have to look."""
