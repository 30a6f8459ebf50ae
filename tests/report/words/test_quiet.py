"""How quiet a machine is, in sentences."""

from typing import Any

from aaco_pipeline.report.words.quiet import TAKES, machine_sentences


def row(kind: str, name: str | None, occurrences: int, taken_ns: int, cpu: int = 0) -> dict[str, Any]:
    told = {"cpu": cpu, "kind": kind, "name": name, "occurrences": occurrences}
    return {**told, "taken_ns": taken_ns, "of_ns": 10_000_000_000}


def test_what_vanished_what_the_timer_costs_and_who_ran() -> None:
    rows = [
        *(row("unseen", None, 900, 130_000_000), row("interrupt", "local_timer", 2_500, 100_000_000)),
        *(
            row("thread", "hog", 10, 200_000_000),
            row("thread", "kworker", 5, 1_000),
            row("interrupt", "virtio", 1, 5_000),
        ),
    ]
    assert machine_sentences(rows, [1, 2], 10, None) == [
        "On 1 CPU for 10 s, 1.3 % of the CPU time vanished unseen: no event of the kernel explains it.",
        "The timer ticks at 250 Hz and costs 40 µs a tick (1.0 %).",
        "Other threads took 2.0 %, most of it hog.",
        "Other interrupts took 0.0 %, most of it virtio.",
        "On average 1.5 threads wanted a CPU, 1 of them the probes.",
    ]


def test_without_rights_it_says_what_it_could_not_see() -> None:
    said = machine_sentences([row("gap", None, 5, 500_000_000)], [], 10, "tracefs is not mounted")
    assert said == [
        "On 1 CPU for 10 s, 5.0 % of the CPU time went elsewhere. By what is unknown: tracefs is not mounted."
    ]


def test_a_quiet_machine_has_no_others() -> None:
    assert "No other thread took a CPU." in machine_sentences([row("unseen", None, 0, 0)], [], 10, None)
    assert TAKES["taken by"](row("unseen", None, 0, 0)) == "nothing that was seen"
