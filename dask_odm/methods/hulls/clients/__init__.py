"""Nearest points of reduced hulls whose rows stay with clients, which exchange sums with a server."""
