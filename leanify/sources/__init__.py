"""Anything that names a model: names, recipes, lean directories, run directories, checkpoints."""
