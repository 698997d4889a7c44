"""The one exception for what a user can mend."""


class InputError(ValueError):
    """Something the user gave is wrong: a key, a file, a folder. One line that names it, what is allowed, a remedy.

    Commands print it without a trace and exit with 2; every other exception is a failure of ours and keeps its trace.
    It is a ValueError so that pydantic reports it when a validator raises it.
    """
