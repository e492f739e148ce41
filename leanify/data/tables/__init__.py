"""Tables of the user's own: rows, columns, and guesses of their meaning."""
