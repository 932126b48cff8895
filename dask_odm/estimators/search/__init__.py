"""The search for settings of `ODMClassifierCV`."""
