"""Write a model for another loader, and check what was written by running it there."""
