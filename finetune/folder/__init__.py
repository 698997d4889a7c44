"""A model folder: loaded, written, served."""
