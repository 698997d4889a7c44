"""Both ways between our folders and those of transformers; the only place that knows that library."""
