"""`aaco quiet`: check how quiet this machine is before measuring on it.

`aaco_pipeline.resources.kernel_plane.quiet` probes; `aaco_pipeline.analysis.delays.interference` attributes the time.
"""

import tempfile
from pathlib import Path

import click

from aaco_pipeline.cli.output import console, data_format, print_json, progress_bar, say
from aaco_pipeline.report.terminal import print_prose, print_table


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(0.5, 600), default=10.0, show_default=True, help="Time to probe the CPUs."
)
@data_format
def quiet(seconds: float, as_json: bool) -> None:
    """Measure how quiet this machine is: what interrupts threads that only read the clock."""
    from aaco_pipeline.analysis.delays.interference import machine_takes
    from aaco_pipeline.analysis.delays.thread_states import thread_states
    from aaco_pipeline.formats.native.kernel_plane import read
    from aaco_pipeline.report.recording_checks import NO_RUNNABLE, TAKES, machine_sentences
    from aaco_pipeline.resources.kernel_plane.quiet import probe_machine

    with tempfile.TemporaryDirectory() as scratch:
        with progress_bar(as_json) as show:

            def tick(done: float) -> None:
                show("probing the CPUs", int(done), int(seconds))

            probed = probe_machine(Path(scratch), seconds, tick)
        recorded = read(probed.document, Path(scratch), 0)
    tables = recorded.tables
    states = thread_states(
        tables["kernel_events"], tables["kernel_threads"], tables["kernel_losses"], recorded.details["throttling"]
    )
    takes = machine_takes(probed.probes, states, tables["kernel_events"], tables["kernel_threads"])
    rows = takes.sort("taken_ns", "cpu", "name", descending=[True, False, False]).to_dicts()
    reason = None if probed.document["state"] == "present" else str(probed.document["reason"])
    # The result is invalid if a CPU went offline or events were lost.
    told = next(
        (one.reason for one in recorded.evidence if one.item == "kernel plane" and one.status != "absent"), None
    )
    if as_json:
        wanted = {
            "runnable": None if probed.runnable is None else list(probed.runnable),
            "runnable_reason": NO_RUNNABLE if probed.runnable is None else None,
        }
        print_json({"seconds": seconds, "reason": reason, "recording": told, **wanted, "taken": rows})
        return
    screen = console()
    for sentence in machine_sentences(rows, probed.runnable, seconds, reason):
        print_prose(screen, sentence)
    if told is not None:
        print_prose(screen, f"Of the recording: {told}.")
    if reason is not None and probed.document["fix"]:
        say(f"to see what: {probed.document['fix']}")
    print_table(screen, TAKES, rows[:20], title="What took the CPUs", names=("taken by",))
