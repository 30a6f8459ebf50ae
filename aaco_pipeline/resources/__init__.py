"""The only code that starts processes, opens devices or uses networks; the command imports it lazily."""
