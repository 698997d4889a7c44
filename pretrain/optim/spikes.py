"""Loss spikes: a step whose loss lies k standard deviations above the running mean of the losses before it.

The mean and the variance decay over about 100 steps. They lie in the checkpoint, so a resumed run judges as the
uninterrupted one. The loss of a spike is clipped to the limit before it is averaged in: one spike barely moves the
mean, while a loss that stays high becomes the new mean after a while.
"""

from dataclasses import dataclass

DECAY = 0.99
MIN_LOSSES = 50  # before anything is called a spike


@dataclass
class LossTrend:
    """Exponential mean and variance of the losses so far."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def is_spike(self, loss: float, sigma: float) -> bool:
        """Whether `loss` is more than `sigma` standard deviations above the trend; 0 turns the test off."""
        return sigma > 0 and self.count >= MIN_LOSSES and loss > self.mean + sigma * self.variance**0.5

    def add(self, loss: float, sigma: float) -> None:
        """Average in the loss of an applied step, clipped to the limit above which it would be a spike."""
        if self.is_spike(loss, sigma):
            loss = self.mean + sigma * self.variance**0.5
        decay = min(DECAY, self.count / (self.count + 1))
        delta = loss - self.mean
        self.mean += (1 - decay) * delta
        self.variance = decay * (self.variance + (1 - decay) * delta * delta)
        self.count += 1
