"""Tables of the user's own: rows, columns, and guesses at what they hold."""
