"""What other pages, other users and people do to a running `aaco ui`."""
