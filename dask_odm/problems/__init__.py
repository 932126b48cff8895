"""Problems: what is minimised, never how."""
