"""Bytes to records: one module a format, behind `formats.plan` and `formats.read`.

For whole rows: `files.open_file`, `lines.parse_json_line`, `tables.record_batches`, `hub.open_stream`.
"""
