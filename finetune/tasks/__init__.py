"""The four tasks: each with its losses and scores near it, and the table of them in `table`."""
