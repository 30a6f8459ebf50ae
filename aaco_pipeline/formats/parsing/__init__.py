"""What several formats share: large JSON, CSV as text columns, counted passes, what may be kept of an environment."""
