"""Readers, which turn files, arrays and frames into blocks of rows: a module for every kind of source."""
