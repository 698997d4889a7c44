"""Bytes to records: what each format is read by."""
