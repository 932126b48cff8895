"""A benchmark that anyone can run: methods side by side on the same rows, each in a process of its own."""
