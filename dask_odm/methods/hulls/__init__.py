"""Nearest points of two reduced hulls (ν-SVM and the hard margin), by Wolfe's, Gilbert's and saddle-point methods."""
