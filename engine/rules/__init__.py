"""Rules: their format, loading, evaluation and checks, and the toolchains whose options they name."""
