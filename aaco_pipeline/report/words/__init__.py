"""How figures and findings are said: units and sentences."""
