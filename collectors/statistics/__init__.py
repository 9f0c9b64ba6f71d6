"""Statistics of tensors and samples: what a batch adds to them, by compiled loops."""
