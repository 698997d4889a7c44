"""One checkpoint format for every engine."""
