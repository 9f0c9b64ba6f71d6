"""Packages of Core ML: the program and its weights, read without running them."""
