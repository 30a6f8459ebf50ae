"""What another Python interpreter would run a model with: its version and its packages, asked of itself."""

import json
import subprocess
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.resources.host.facts import MEASURED_PACKAGES, own_software

_SECONDS: Final = 60.0
#: It runs in the other interpreter: the standard library alone.
_ASK: Final = """
import json, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({"python": sys.version.split()[0], **{name: version(name) for name in sys.argv[1:]}}))
"""


def software_of(interpreter: str) -> dict[str, str | None]:
    """Versions of `python` and of the packages that can change what is run, None of one that is not installed.

    aaco_pipeline's own version is this process's: its loop runs there too. UsageError when there is no such program,
    UnavailableError when it is no Python with NumPy and an onnxruntime.
    """
    if not Path(interpreter).is_file():
        raise UsageError(f"{interpreter}: no such file; give the path of a Python, as .venv/bin/python is")
    try:
        asked = subprocess.run(
            [interpreter, "-P", "-c", _ASK, *MEASURED_PACKAGES],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
        found = json.loads(asked.stdout)
        software: dict[str, str | None] = {name: found[name] for name in ("python", *MEASURED_PACKAGES)}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(
            f"{interpreter}: does not answer as a Python of 3.11 or newer does ({type(error).__name__}); try "
            f"`{interpreter} -P -c 'import onnxruntime'`"
        ) from error
    if software.get("numpy") is None or not any(name.startswith("onnxruntime") and software[name] for name in software):
        raise UnavailableError(f"{interpreter}: has no numpy or no onnxruntime; install them into its environment")
    return {**software, "aaco_pipeline": own_software()["aaco_pipeline"]}
