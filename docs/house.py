"""Draw the rooms of the package and the arrows between them, from the imports in the code.

    python docs/house.py            # writes docs/images/house.svg
    python docs/house.py --check    # exits with 1 when the picture is out of date

Standard library alone; the same code gives the same bytes. A room is a folder of `aaco_pipeline`; modules at its top
that nearly every room imports are drawn as one box. An arrow that a longer path implies is left out.
"""

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "aaco_pipeline"
PICTURE = ROOT / "docs" / "images" / "house.svg"
#: Single modules that any room may import.
COMMON = ("cache_folder", "code_digest", "errors", "providers")
#: What a box says of its room.
PURPOSE = {
    "analysis": "tables to answers",
    "assets": "a module per stage",
    "automation": "all of Dagster",
    "capture": "opens any capture",
    "cli": "the aaco command",
    "common": "errors, providers, cache",
    "definitions": "what Dagster loads",
    "formats": "foreign files to tables",
    "hardware": "what devices can do",
    "lake": "tables, SQL, manifests",
    "mark": "marks in programs",
    "optimization": "sources to decisions",
    "pipeline": "stages and campaigns",
    "recording": "any program as it runs",
    "report": "terminal, HTML, traces",
    "resources": "processes and devices",
    "statistics": "sessions to verdicts",
    "web": "what browsers reach",
}
WIDTH, HEIGHT, GAP, FLOOR, MARGIN = 150, 46, 34, 104, 28
#: Room that an arrow takes on a floor that it only passes.
LANE = 26
Arrows = dict[str, set[str]]


def room_of(module: str) -> str:
    """`lake` for `aaco_pipeline.lake.sql`; the common modules are one room."""
    first = module.split(".")[1]
    return "common" if first in COMMON else first


def imported_rooms(path: Path) -> Iterator[str]:
    """The room of every import of this package, also of those inside functions and for the type checker."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE.name:
            yield from (room_of(f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (room_of(one.name) for one in node.names if one.name.startswith(f"{PACKAGE.name}."))


def house() -> Arrows:
    """The rooms, each with those that it imports."""
    arrows: Arrows = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent == PACKAGE and path.name == "__init__.py":
            continue
        room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        arrows.setdefault(room, set()).update(imported_rooms(path))
    for room, targets in arrows.items():
        targets.intersection_update(set(arrows) - {room})
    return arrows


def reached(arrows: Arrows, start: str) -> set[str]:
    """Every room that `start` reaches by one arrow or more."""
    found: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        room = waiting.pop()
        if room not in found:
            found.add(room)
            waiting.extend(arrows[room])
    return found


def reduced(arrows: Arrows) -> Arrows:
    """The arrows without those that a longer path implies."""
    below = {room: reached(arrows, room) for room in arrows}
    if circle := sorted(room for room in arrows if room in below[room]):
        raise SystemExit(f"rooms that import one another in a circle: {', '.join(circle)}")
    return {
        room: {one for one in targets if not any(one in below[other] for other in targets)}
        for room, targets in arrows.items()
    }


def floors(arrows: Arrows) -> dict[str, int]:
    """The floor of each room, 0 at the top: below everything that imports it, and no higher than just above its own."""
    importers = {room: [one for one in arrows if room in arrows[one]] for room in arrows}
    floor: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in floor:
            floor[room] = max((of(one) + 1 for one in importers[room]), default=0)
        return floor[room]

    for room in sorted(arrows):
        of(room)
    # A room that few import sinks to just above what it imports, so that its arrows are short.
    for room in sorted(arrows, key=lambda one: -floor[one]):
        if importers[room] and arrows[room]:
            floor[room] = min(floor[one] for one in arrows[room]) - 1
    return floor


def chains(arrows: Arrows, floor: Mapping[str, int]) -> dict[tuple[str, str], list[str]]:
    """By arrow the names of its stops: the two rooms, and a lane on every floor between them."""
    return {
        (room, target): [room, *(f"{room}>{target}@{at}" for at in range(floor[room] + 1, floor[target])), target]
        for room in sorted(arrows)
        for target in sorted(arrows[room])
    }


def ordered(floor: Mapping[str, int], stops: Iterable[Sequence[str]]) -> list[list[str]]:
    """The stops of each floor from left to right, so that few arrows cross: sweeps of the mean place of neighbours."""
    rows: list[list[str]] = [[] for _ in range(max(floor.values()) + 1)]
    for room in sorted(floor):
        rows[floor[room]].append(room)
    neighbours: dict[str, list[str]] = {}
    for chain in stops:
        for at, one in enumerate(chain[1:-1], floor[chain[0]] + 1):
            rows[at].append(one)
        for upper, lower in pairwise(chain):
            neighbours.setdefault(upper, []).append(lower)
            neighbours.setdefault(lower, []).append(upper)
    best, fewest = rows, crossings(rows, neighbours)
    for sweep in range(24):
        rows = [list(row) for row in rows]
        for at in range(len(rows)) if sweep % 2 else reversed(range(len(rows))):
            beside = rows[at - 1] if sweep % 2 else rows[(at + 1) % len(rows)]
            place = {one: (number + 0.5) / len(beside) for number, one in enumerate(beside)}
            own = {one: (number + 0.5) / len(rows[at]) for number, one in enumerate(rows[at])}

            def middle(one: str, place: dict[str, float] = place, own: dict[str, float] = own) -> tuple[float, str]:
                near = [place[other] for other in neighbours.get(one, []) if other in place]
                return (sum(near) / len(near) if near else own[one]), one

            rows[at].sort(key=middle)
        if (count := crossings(rows, neighbours)) < fewest:
            best, fewest = rows, count
    return best


def crossings(rows: Sequence[Sequence[str]], neighbours: Mapping[str, Sequence[str]]) -> int:
    """Count the pairs of arrows that cross between neighbouring floors."""
    count = 0
    for upper, lower in pairwise(rows):
        below = {one: at for at, one in enumerate(lower)}
        ends = [sorted(below[other] for other in neighbours.get(one, []) if other in below) for one in upper]
        flat = [(at, end) for at, targets in enumerate(ends) for end in targets]
        count += sum(a < b and x > y for a, x in flat for b, y in flat)
    return count


def placed(rows: Sequence[Sequence[str]], stops: Iterable[Sequence[str]]) -> tuple[dict[str, float], float]:
    """The centre of every stop across the picture, near those that it is joined to, and the picture's width."""
    size = {one: (LANE if "@" in one else WIDTH) for row in rows for one in row}
    space = {one: (6 if "@" in one else GAP) for one in size}
    widest = max(sum(size[one] + space[one] for one in row) for row in rows)
    centre: dict[str, float] = {}
    for row in rows:
        at = (widest - sum(size[one] + space[one] for one in row)) / 2
        for one in row:
            centre[one] = at + (size[one] + space[one]) / 2
            at += size[one] + space[one]
    joined: dict[str, list[str]] = {}
    for chain in stops:
        for upper, lower in pairwise(chain):
            joined.setdefault(upper, []).append(lower)
            joined.setdefault(lower, []).append(upper)
    for _ in range(60):
        for row in rows:
            wanted = []
            for one in row:
                # Lanes pull harder, so that an arrow that passes several floors runs straight.
                pulls = [(8.0 if "@" in one and "@" in other else 1.0, centre[other]) for other in joined.get(one, ())]
                pulls.append((0.5, widest / 2))  # and all of it keeps to the middle
                wanted.append(sum(weight * x for weight, x in pulls) / sum(weight for weight, _ in pulls))
            apart = [0.0]
            for one, other in pairwise(row):
                apart.append(apart[-1] + (size[one] + space[one] + size[other] + space[other]) / 2)
            moved = increasing([x - offset for x, offset in zip(wanted, apart, strict=True)])
            for one, x, offset in zip(row, moved, apart, strict=True):
                centre[one] = x + offset
    left = min(centre[one] - size[one] / 2 for one in size)
    right = max(centre[one] + size[one] / 2 for one in size)
    return {one: round(x - left + MARGIN, 1) for one, x in centre.items()}, round(right - left + 2 * MARGIN, 1)


def increasing(values: Sequence[float]) -> list[float]:
    """The nearest values, in least squares, that do not fall: neighbours that do are averaged."""
    groups: list[tuple[float, int]] = []
    for value in values:
        groups.append((value, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (a, m), (b, n) = groups[-2:]
            groups[-2:] = [((a * m + b * n) / (m + n), m + n)]
    return [mean for mean, count in groups for _ in range(count)]


def path_of(points: Sequence[tuple[float, float]]) -> str:
    """A smooth line downwards through points."""
    text = f"M{points[0][0]:g},{points[0][1]:g}"
    for (x, y), (u, v) in pairwise(points):
        bend = (v - y) * 0.45
        text += f" C{x:g},{y + bend:g} {u:g},{v - bend:g} {u:g},{v:g}"
    return text


def drawn() -> str:
    """The picture."""
    arrows = reduced(house())
    floor = floors(arrows)
    routes = chains(arrows, floor)
    rows = ordered(floor, routes.values())
    centre, width = placed(rows, routes.values())
    top = {room: MARGIN + FLOOR * at for room, at in floor.items()}
    height = MARGIN + FLOOR * max(floor.values()) + HEIGHT + 62
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui, sans-serif" role="img" '
        'aria-label="Rooms of aaco_pipeline and which imports which">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0.8 L7,4 L0,7.2 Z" fill="#5b6470"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
    ]
    for (room, target), chain in routes.items():
        leaving = sorted((other for other in arrows[room]), key=lambda one: centre[routes[room, one][1]])
        coming = sorted(
            (one for one in arrows if target in arrows[one]), key=lambda one: centre[routes[one, target][-2]]
        )
        x = centre[room] + spread(leaving.index(target), len(leaving))
        u = centre[target] + spread(coming.index(room), len(coming))
        points = [(round(x, 1), float(top[room] + HEIGHT))]
        for at, one in enumerate(chain[1:-1], floor[room] + 1):
            points += [(centre[one], float(MARGIN + FLOOR * at)), (centre[one], float(MARGIN + FLOOR * at + HEIGHT))]
        points.append((round(u, 1), float(top[target] - 1)))
        lines.append(
            f'<path d="{path_of(points)}" fill="none" stroke="#5b6470" stroke-width="1.3" marker-end="url(#tip)"/>'
        )
    for room in sorted(floor):
        x, y = centre[room] - WIDTH / 2, top[room]
        door = not any(room in targets for targets in arrows.values())
        fill, edge = ("#1b5fb4", "#1b5fb4") if door else ("#eef3fa", "#7d93b2")
        ink, paler = ("#ffffff", "#dbe7f7") if door else ("#1c2430", "#5b6470")
        lines += [
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="7" fill="{fill}" stroke="{edge}"/>',
            f'<text x="{centre[room]:g}" y="{y + 20:g}" font-size="14" font-weight="600" text-anchor="middle" '
            f'fill="{ink}">{room}</text>',
            f'<text x="{centre[room]:g}" y="{y + 36:g}" font-size="11" text-anchor="middle" fill="{paler}">'
            f"{PURPOSE[room]}</text>",
        ]
    for number, text in enumerate(
        (
            "An arrow points to what a room imports; arrows that a longer path implies are left out.",
            "Blue rooms are doors: nothing imports them. Drawn by docs/house.py.",
        )
    ):
        y = height - 34 + 17 * number
        lines.append(f'<text x="{MARGIN}" y="{y:g}" font-size="12" fill="#5b6470">{text}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def spread(number: int, count: int) -> float:
    """Offset from the middle of a box at which the arrow with this number ends."""
    return (number - (count - 1) / 2) * min(22.0, (WIDTH - 24) / max(count, 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the picture would change")
    picture = drawn()
    if parser.parse_args().check:
        current = PICTURE.is_file() and PICTURE.read_text(encoding="utf-8") == picture
        print("up to date" if current else "docs/images/house.svg is out of date; run: python docs/house.py")
        return 0 if current else 1
    PICTURE.write_text(picture, encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
