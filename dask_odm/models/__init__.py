"""What a fitted estimator predicts with: immutable records that tasks carry and `save` writes."""
