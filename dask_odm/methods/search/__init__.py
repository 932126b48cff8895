"""The search for settings by trials on samples of rows."""
