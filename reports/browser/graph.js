// The graph of the model.
views.graph = (root) => {};
