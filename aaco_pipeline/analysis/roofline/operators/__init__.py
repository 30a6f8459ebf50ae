"""The work of framework operators from the shapes of their inputs, and their launches."""
