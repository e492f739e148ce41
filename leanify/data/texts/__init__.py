"""Texts: labelled, plain; tokenizers and token files."""
