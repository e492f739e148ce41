"""Spectra of each layer's concatenated heads: measured, predicted, reported."""
