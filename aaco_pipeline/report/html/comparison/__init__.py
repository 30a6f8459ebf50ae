"""The pages of a verdict and of a difference: where everything lies on them, and how they are put together."""
