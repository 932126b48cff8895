"""The methods of learning, one folder each: problem, solver, its run on Dask, and the recipe that joins them."""
