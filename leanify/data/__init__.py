"""Data sets: one file each, and what they share (samples, sampling, tokenizers)."""
