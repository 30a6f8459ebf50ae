"""What is watched without a person asking: this host's stack, runs that fail, and regressions that were found.

`stack` remembers the stack and says what changed, `findings` what there is to tell, `telling` tells each once.
Dagster's side is `aaco_pipeline.automation.watching`.
"""
