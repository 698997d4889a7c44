"""Fine-tuning: from an encoder's folder to a task's model, its scores, and the commands that use it.

Everything starts from a folder that plain `AutoModel…` loads, as a user's would, so nothing here needs `encoder` or
`pretrain`. The rooms depend one way: config < reading < folder < tasks < training, inference < serving, run < commands.
"""
