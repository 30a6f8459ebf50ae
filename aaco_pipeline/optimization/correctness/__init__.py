"""Check that a changed kernel is correct: `checking` draws its calls, `comparison` compares the outputs."""
