"""The zoo of language models: known faults put into small ones, to measure how often the right one is named."""
