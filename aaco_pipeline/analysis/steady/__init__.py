"""Which part of a recording is steady work, what came before and after it, and which dispatches stand out in it."""
