"""How a step is executed."""
