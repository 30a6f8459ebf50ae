"""What refuses a candidate before it is run: its text, its object file, and what a GPU would need for it."""
