"""Data sets: generated, bundled with scikit-learn, or downloaded."""
