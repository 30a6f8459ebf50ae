"""Reading captures of strangers in a process that can do nothing else, bounded in memory and time.

`doors` are what the rest of the program calls. A request goes by `server` to `reader_server`, one process per program,
which forks a child for it; the child shuts itself in by `sandbox`, within `bounds`, does its `work` and leaves its
results in a folder. `results` are what is made of them. What the files mean is `aaco_pipeline.capture`.
"""
