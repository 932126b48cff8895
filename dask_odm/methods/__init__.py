"""The methods of learning, a folder each: problem, solver, how Dask runs it, and the recipe that joins them."""
