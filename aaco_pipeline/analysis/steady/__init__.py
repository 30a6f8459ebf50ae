"""Find the steady part of a recording, the parts before and after it, and first calls."""
