// The layer table.
views.table = (root) => {};
