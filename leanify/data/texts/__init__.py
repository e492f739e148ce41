"""Texts: labelled, tagged, plain; tokenizers and token files."""
