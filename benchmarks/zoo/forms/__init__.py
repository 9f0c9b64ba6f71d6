"""What is done to a network: a function for each row of ``faults.csv``, of the same name."""
