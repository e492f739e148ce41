"""Designs of equal parameters on six tasks: which rule ranks them?

sweep         trains, measures, keeps one row a run; its recipes are the `.toml` files here
rates         the same designs at several learning rates
tournaments   what a tournament finds, beside the best of a whole sweep
pages         writes the pages and pictures from the tables, by the other modules here
"""
