"""Records to masked batches, with an exact state."""
