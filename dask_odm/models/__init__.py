"""Models that fitted estimators predict with: immutable records that tasks carry and `save` writes."""
