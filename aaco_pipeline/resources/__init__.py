"""The only code that starts processes, opens devices or calls networks; imported lazily by the command."""
