"""Sources of builds: compilers with limits, the revisions of a repository, and the command that builds one."""
