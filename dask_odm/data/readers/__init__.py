"""From files, arrays and frames to blocks of rows: a file for every kind of source, and `ingest`."""
