"""Reading captures of strangers in a process that can do nothing else, bounded in memory and time.

The rest of the program calls `client`. A request goes to `reader_server`, one process per program, which forks a child
for it; the child confines itself by `sandbox`, within the bounds of the request, and leaves its results in a folder.
The files are interpreted by `aaco_pipeline.capture`.
"""
