"""One checkpoint format for every engine: found, saved, restored, retired."""
