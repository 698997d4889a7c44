"""Tokenizers: trained, loaded, and reported on."""
