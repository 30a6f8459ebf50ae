"""Try to read a running `aaco ui` as another user of the host: HTTP, sockets, files, /proc. Run as root."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.reliability.web_door.counted import with_the_door

#: Runs as the other user: says as JSON what each attempt got, "" for nothing.
ATTEMPTS: Final = r"""
import glob, http.client, json, os, re, socket, sys
port, token = int(sys.argv[1]), re.compile(r"token=[\w-]{43}")
query = json.dumps({"query": "{ version }"})
got = {}

def attempt(name, function):
    try:
        got[name] = function()
    except Exception as error:
        got[name] = ""

def ask(method, path, body=None, **headers):
    def asking():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        told = answer.read().decode(errors="replace")
        return "" if answer.status in (400, 403, 404, 405) and "set-cookie" not in answer.headers else told[:200] or "?"
    return asking

JSON = {"Content_Type": "application/json"}
attempt("page", ask("GET", "/"))
attempt("graphql", ask("POST", "/graphql", query, **JSON))
OURS = {**JSON, "Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
attempt("graphql as our page", ask("POST", "/graphql", query, **OURS))
attempt("graphql by get", ask("GET", "/graphql?query={version}"))
attempt("server info", ask("GET", "/server_info"))
attempt("static file", ask("GET", "/favicon.svg"))
attempt("a log", ask("GET", "/logs/x/y/z.out"))
attempt("debug file", ask("GET", "/download_debug/x"))
attempt("notebook", ask("GET", "/notebook?repoLocName=aaco_pipeline&path=/etc/passwd.ipynb"))
attempt("materialization", ask("POST", "/report_asset_materialization/report", "{}", **JSON))
attempt("a report", ask("GET", "/aaco/reports/session_id=20261122T044130Z-2e851ad6/report.html"))
attempt("guessed link", ask("GET", "/?token=" + "A" * 43))
attempt("guessed cookie", ask("GET", "/", Cookie=f"aaco_{port}=" + "A" * 43))
attempt("empty cookie", ask("POST", "/graphql", query, **JSON, Cookie=f"aaco_{port}="))
attempt("two cookies", ask("GET", "/", Cookie=f"aaco_{port}=a; aaco_{port}=b"))
attempt("options", ask("OPTIONS", "/graphql"))
attempt("bearer", ask("POST", "/graphql", query, **JSON, Authorization="Bearer x", X_Forwarded_For="127.0.0.1"))
attempt("websocket", ask("GET", "/graphql", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Version="13",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==", Sec_WebSocket_Protocol="graphql-ws"))

commands = [open(path, "rb").read().decode(errors="replace") for path in glob.glob("/proc/[0-9]*/cmdline")]
attempt("token in a command line", lambda: "".join(token.findall("".join(commands))))

def environments():
    found = ""
    for command, path in ((path.replace("cmdline", "environ"), path) for path in glob.glob("/proc/[0-9]*/cmdline")):
        if "aaco_pipeline.web" in open(path, errors="replace").read() and str(os.getpid()) not in path:
            try:
                found += open(command, errors="replace").read()
            except PermissionError:
                pass
    return found
attempt("environments", environments)

def sockets():
    places = {place for command in commands for place in re.findall(r"/tmp/aaco-\w+/[\w.]+", command)}
    assert places, "no socket is named, so that there is nothing to try"
    found = ""
    for place in places:
        with socket.socket(socket.AF_UNIX) as trying:
            try:
                trying.connect(place)
                found += place
            except PermissionError:
                pass
    return found
attempt("code server's sockets", sockets)

def folders():
    for place in {os.path.dirname(one) for command in commands for one in re.findall(r"/tmp/aaco-\w+/[\w.]+", command)}:
        return " ".join(os.listdir(place))
attempt("folder of the sockets", folders)
print(json.dumps(got))
"""
FEWEST_ATTEMPTS: Final = 20


def main() -> int:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        print("setpriv is not here, so that nobody else can be made to try")
        return 1
    with tempfile.TemporaryDirectory() as scratch, with_the_door(Path(scratch) / "doored") as (running, counts):
        other = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", ATTEMPTS]
        command = [*other, str(running.port)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=300, check=True)
        reached = counts.requests()
        listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
        own = {f"pid={pid}," for pid in running.descendants()}
        ports = {line.split()[3] for line in listening.splitlines() if any(pid in line for pid in own)}
    got = json.loads(done.stdout)
    through = {name: what for name, what in got.items() if what}
    print(f"another user: {len(through)} of {len(got)} attempts got anything; {len(reached)} requests reached Dagster")
    print(f"ports that are listened on: {', '.join(ports)}")
    for name, what in through.items():
        print(f"BROKEN: {name}: {what}")
    return 0 if not through and not reached and len(got) >= FEWEST_ATTEMPTS and len(ports) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
