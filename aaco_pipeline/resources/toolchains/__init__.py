"""Sources of builds: compilers run under limits, the revisions of a repository, and the command that builds one."""
