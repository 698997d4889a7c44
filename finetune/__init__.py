"""From an encoder's folder to a model in use: one configuration, one table of tasks, honest scores.

Walks the user's road: plain `AutoModel…` in, plain folder out, nothing of `encoder` or `pretrain`.
"""
