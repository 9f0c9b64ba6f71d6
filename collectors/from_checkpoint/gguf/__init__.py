"""Files of llama.cpp: their tables, block types and names."""
