"""Data sets of samples, one file each, and their common parts: samples, sampling, tokenizers, labels."""
