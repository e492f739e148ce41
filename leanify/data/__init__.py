"""Data sets, one file each, and their common parts (samples, sampling, tokenizers)."""
