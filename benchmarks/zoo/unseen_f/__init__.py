"""The sixth set of faults that nobody has tuned to, with networks of its own."""

from . import activations, controls, data, graph, networks, plan, runtime, sanity, weights

assert all((activations, controls, data, graph, networks, plan, runtime, sanity, weights))
