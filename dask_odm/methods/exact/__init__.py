"""The exact kernel ODM over all rows, by Newton's method over the active rows."""
