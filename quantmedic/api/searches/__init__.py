"""Searches: for layers to leave in float, and for the calibration that suits a network best."""
