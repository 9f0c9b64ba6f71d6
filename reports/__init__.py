"""Reports render a diagnosis for people and machines."""
