"""The language model that may be asked for changes to a kernel: its settings, the client, what was asked and answered.

What is asked, and what an answer may be, is `aaco_pipeline.optimization.proposers`. Nothing here runs unless
`configs/language_model.yaml` names an endpoint.
"""
