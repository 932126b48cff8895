"""The systems of five papers, one folder a paper; what users run instead is in `dask_odm.methods`.

Only the registries of solvers and estimators name these folders, and the estimators of a paper import its own.
docs/odm.md says which object runs each system.
"""
