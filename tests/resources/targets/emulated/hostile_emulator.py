"""Programs that begin as the driver does and then answer otherwise: the first argument says how."""

import base64
import json
import os
import sys
import time


def main(way: str, answers: int) -> None:
    """Answer as an honest driver does until a launch is asked for; then in this way."""
    with os.fdopen(answers, "wb") as stream:
        for line in sys.stdin:
            command = json.loads(line)
            ok: object = {"unconfined": []} if command["do"] == "open" else {}
            if command["do"] == "run":
                sizes = [one["size"] for one in command["with"]["buffers"]]
                results = [base64.b64encode(bytes(size)).decode() for size in sizes]
                ok = answered(way, results)
            nonce = "another" if way == "nonce" and command["do"] == "run" else command["nonce"]
            stream.write(json.dumps({"nonce": nonce, "ok": ok}).encode() + b"\n")
            stream.flush()


def answered(way: str, results: list[str]) -> object:
    """Its answer to a launch; some ways end here."""
    if way == "exits":
        sys.exit("out of order")
    if way == "hangs":
        time.sleep(60)
    if way == "garbage":
        os.write(int(sys.argv[2]), b"\xff\xfe{]\n")
    if way == "deep":
        os.write(int(sys.argv[2]), b"[" * 100_000 + b"\n")
    return {
        "short": {"results": [base64.b64encode(b"abc").decode()], "instructions": {}},
        "not base64": {"results": ["\u00e9" * 8], "instructions": {}},
        "another number": {"results": results * 2, "instructions": {}},
        "no results": {"instructions": {}},
        "a list": results,
        "counts less than none": {"results": results, "instructions": {"vector": -1}},
        "counts what is nothing": {"results": results, "instructions": {"wishes": 3}},
        "counts in words": {"results": results, "instructions": {"vector": "many"}},
    }.get(way, {"results": results, "instructions": {"vector": 1}})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
