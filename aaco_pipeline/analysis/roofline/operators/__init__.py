"""What framework operators had to do, by the shapes of their inputs: operations, least bytes, and whose launches they are."""
