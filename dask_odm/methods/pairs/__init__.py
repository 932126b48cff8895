"""Many classes by machines of two: one against one, exactly."""
