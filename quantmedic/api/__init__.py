"""The public API, one module per capability; ``quantmedic`` re-exports it."""
