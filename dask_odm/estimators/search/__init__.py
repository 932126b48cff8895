"""The search for the settings of an estimator."""
