// The error graphs.
views.charts = (root) => {};
