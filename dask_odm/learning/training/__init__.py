"""The data of one fit, in memory or in a store, and how a recipe turns it into a model."""
