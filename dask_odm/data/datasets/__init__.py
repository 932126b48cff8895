"""Data to try: made up to order, bundled with scikit-learn, or fetched."""
