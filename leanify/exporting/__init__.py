"""Write a model for another loader, and check the result by running it there."""
