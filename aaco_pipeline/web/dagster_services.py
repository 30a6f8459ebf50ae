"""The processes of `aaco ui`: code servers, Dagster's web server and its daemon.

Their sockets are in a folder that no other user can access.
"""

import json
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aaco_pipeline.cache_folder import temporary_folder
from aaco_pipeline.resources.configuration import read_yaml
from aaco_pipeline.resources.project import WORKSPACE, Project
from aaco_pipeline.resources.services import Service
from aaco_pipeline.web.dagster_webserver import Settings

#: At info, Dagster's default level, every sensor tick logs a line.
_LEVEL: Final = "warning"
#: Options of `dagster code-server start` for each module key in workspace.yaml.
_POINTERS: Final = {
    "module_name": "-m",
    "attribute": "-a",
    "working_directory": "-d",
    "location_name": "--location-name",
}


@contextmanager
def socket_folder() -> Iterator[Path]:
    """Create a folder that only this user can access; its path is short because socket paths are limited."""
    folder = temporary_folder("aaco-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def dagster_services(
    project: Project, folder: Path, listening: socket.socket, host: str, allowed_hosts: tuple[str, ...]
) -> list[Service]:
    """List the processes of `aaco ui` in start order. Their sockets are in `folder`."""
    workspace, own = project.settings(WORKSPACE), folder / WORKSPACE
    code_servers, served = [], []
    for number, (name, pointer) in enumerate(_modules_of(workspace).items()):
        place = str(folder / f"code{number}.sock")
        arguments = ["code-server", "start", "--socket", place, "--log-level", _LEVEL, *pointer]
        code_servers.append(Service(f"the code server of {name}", _program(folder, "dagster", *arguments), ready=place))
        served.append({"grpc_server": {"socket": place, "location_name": name}})
    own.write_text(json.dumps({"load_from": served}))
    # The second file has the addresses of the code locations in the first; Dagster starts any other location itself.
    workspaces = [text for path in (workspace, *([own] if served else [])) for text in ("-w", str(path))]
    common = [*workspaces, "--code-server-log-level", _LEVEL]
    settings = Settings(str(project.lake), str(folder), listening.fileno(), host, allowed_hosts)
    web = [sys.executable, "-P", "-m", "aaco_pipeline.web.dagster_webserver", settings.to_json()]
    daemon = _program(folder, "dagster-daemon", "run", "--log-level", _LEVEL, *common)
    return [
        *code_servers,
        Service("Dagster's web server", [*web, "--dagster-log-level", _LEVEL, *common], None, (listening.fileno(),)),
        Service("Dagster's daemon", daemon),
    ]


def _modules_of(workspace: Path) -> dict[str, list[str]]:
    """Return the modules loaded by a workspace.yaml, by code location, as options of a code server.

    Dagster itself starts the other kinds, and modules for another interpreter, next to each program.
    """
    document = read_yaml(workspace)
    entries = document.get("load_from") if isinstance(document, dict) else None
    found = {}
    for entry in entries if isinstance(entries, list) else []:
        module = entry.get("python_module") if isinstance(entry, dict) else None
        told = {"module_name": module} if isinstance(module, str) else module
        if not isinstance(told, dict) or not {"module_name"} <= set(told) <= set(_POINTERS):
            continue
        if all(isinstance(value, str) for value in told.values()):
            plain = ":".join(told[key] for key in ("module_name", "attribute") if key in told)
            name = told.setdefault("location_name", plain)
            found[name] = [text for key, value in told.items() for text in (_POINTERS[key], value)]
    return found


def _program(folder: Path, program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "aaco_pipeline.web.dagster_program", str(folder), program, *arguments]
