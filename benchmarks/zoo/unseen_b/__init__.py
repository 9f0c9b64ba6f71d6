"""The second set of faults that tuning never sees; nobody who works on rules, facts or trials reads or runs it."""

from . import activations, data, graph, weights

assert all((activations, data, graph, weights))
