"""The third set of faults that tuning never sees, with networks and healthy controls of its own.

Nobody who works on rules, facts or trials reads or runs this set.
"""

from . import activations, chains, controls, data, graph, networks, weights

assert all((activations, chains, controls, data, graph, networks, weights))
