"""Check that a changed kernel is right: `checking` draws its calls, `comparison` compares the answers."""
