"""What a model says of its objective and its gap is true of the model as it predicts."""

from __future__ import annotations
