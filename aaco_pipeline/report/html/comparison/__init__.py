"""The pages of a verdict, a difference and a search: where everything lies on them, and how they are put together."""
