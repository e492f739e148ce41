"""The vocabulary as a part of the model: which tokens stay, and everything that carries an id."""
