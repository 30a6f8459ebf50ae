"""A benchmark over its nights: levels and their changes, trends and forecasts."""
