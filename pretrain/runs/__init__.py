"""The folder of a run: its files, its lock, how far the run is."""
