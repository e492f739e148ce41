"""The layers of the user's own modules: seen in a forward pass, guessed, and tried before they are believed."""
