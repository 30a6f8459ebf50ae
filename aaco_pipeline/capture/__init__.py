"""The one door to what was recorded: discovery of runs, merging of their parts, and the kinds of captures."""
