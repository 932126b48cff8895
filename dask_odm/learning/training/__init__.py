"""The data of one fit, in memory or in a store, and the recipes that turn it into a model."""
