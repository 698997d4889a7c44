"""`python -m data …`."""
