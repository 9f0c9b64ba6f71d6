"""The first set of faults that tuning never sees: other mechanisms, other places and other code than those of the zoo.

Nobody who works on rules, facts or trials reads or runs this set.
"""

from . import activations, data, graph, weights

assert all((activations, data, graph, weights))
