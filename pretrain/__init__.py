"""Pretraining: one step function, one loop, engines behind one interface, checkpoints that any engine reads."""
