"""Where the bytes of stores and records lie: a folder or an object store, locks, and writes that appear whole."""
