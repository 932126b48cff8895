"""Reduced hulls whose rows stay with clients: server and clients exchange sums."""
