"""Which row goes to which partition: in strata, at random, in clusters."""
