"""What framework operators had to do, by the shapes of their inputs, and which launches were theirs."""
