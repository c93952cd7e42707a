"""One run: set up, loop, evaluate, save, resume, record, export.

`run.train_run` is the entry point and calls the stages in order. Imports `data`, `metrics`,
`models`, `distributed`, `engine`, `runs`, `integrations` and the base.
"""
