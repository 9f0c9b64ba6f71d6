"""The second set of faults that tuning never sees; nobody who works on rules, facts or trials reads or runs it."""
