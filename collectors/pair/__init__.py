"""Two models that belong together: their graphs, which tensor is which, and what is known of their weights."""
