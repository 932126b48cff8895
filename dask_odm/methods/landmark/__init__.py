"""The kernel machine in the span of landmarks (Nyström), in memory or by passes over a store."""
