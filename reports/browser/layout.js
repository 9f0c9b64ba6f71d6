// The worker that places the nodes of a graph; runs behind dagre.
