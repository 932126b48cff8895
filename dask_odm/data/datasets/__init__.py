"""Data to try: generated, bundled with scikit-learn, or downloaded."""
