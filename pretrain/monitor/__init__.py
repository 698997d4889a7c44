"""What a run tells about itself, and what ends it."""
