"""The embedded patient: a small network, a badly calibrated and a healthy int8 version, and their data."""
