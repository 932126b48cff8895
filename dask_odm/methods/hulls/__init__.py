"""Reduced hulls: ν-SVM and the hard margin, by Wolfe's, Gilbert's and the saddle-point methods."""
