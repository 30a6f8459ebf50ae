"""Where builds come from: the revisions of a repository, and the command that makes one of them into a file."""
