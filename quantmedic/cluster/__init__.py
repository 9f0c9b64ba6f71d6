"""A Dask cluster: its workers open the models themselves, and only paths, options and small records travel."""
