"""Optimizers, the schedule, loss spikes."""
