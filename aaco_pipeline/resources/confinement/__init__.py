"""Read untrusted captures in a confined process with bounded memory and time.

The rest of the program calls `client`. A request goes to `reader_server`, one process per program, which forks a child
for it; the child confines itself with `sandbox`, within the limits of the request, and leaves its results in a folder.
`aaco_pipeline.capture` interprets the files.
"""
