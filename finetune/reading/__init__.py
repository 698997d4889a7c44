"""A user's file to model inputs."""
