"""Samples for a model, from files: an image folder, a text file, a table of texts."""
