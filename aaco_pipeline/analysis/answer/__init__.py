"""The answer to "where did the time go": validity, exact shares of the steady window, kinds of work, what to fix."""
