"""Hard-margin and ν-SVM by the distance of two reduced hulls."""
