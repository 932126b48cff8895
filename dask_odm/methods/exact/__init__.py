"""The kernel machine of all rows, by Newton's method over the active ones."""
