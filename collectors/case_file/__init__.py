"""The case file: one zip of JSON and arrays, written, read and checked."""
