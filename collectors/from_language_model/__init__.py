"""Causal language models: run block by block on texts, so that memory holds one block and not the network."""
