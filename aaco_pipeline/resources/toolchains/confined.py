"""A compiler's process before it becomes the compiler: limits, no new privileges, no network, few files.

Run by path with `python -I -S`, so that it starts fast and imports nothing of this package except one file by its path.
Arguments: that file (`confinement/sandbox.py`), seconds of CPU time, bytes of memory, bytes per file, accessible paths
as JSON, and the command. Restrictions that the machine does not support (a private network, Landlock) are skipped; if
Landlock is supported, nothing runs without it.
"""

import json
import os
import resource
import runpy
import sys

_MOST_PROCESSES = 4096


def main() -> None:
    """Confine this process and become the command."""
    sandbox = runpy.run_path(sys.argv[1])
    seconds, memory, file = (int(word) for word in sys.argv[2:5])
    sandbox["end_with_parent"](os.getppid())
    sandbox["without_privileges"]()
    sandbox["without_network"]()
    reach = json.loads(sys.argv[5])
    if reach is not None:
        refused = sandbox["only_beneath"](**reach)
        if refused is not None and sandbox["why_no_landlock"]() is None:
            sys.exit(f"cannot be confined: {refused}")
    limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_AS: memory, resource.RLIMIT_FSIZE: file}
    sandbox["within"]({**limits, resource.RLIMIT_NPROC: _MOST_PROCESSES})
    os.execve(sys.argv[6], sys.argv[6:], dict(os.environ))


main()
