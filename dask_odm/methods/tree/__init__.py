"""SODM and its rivals (cascade, DiP, DC): partitions that are solved, merged and solved again."""
