"""PyTorch modules: run as they are, their calls intercepted."""
