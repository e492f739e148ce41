"""A run on disk: the recipe, the directory, checkpoints, and how files are read and written."""
