"""The run folder and everything that reads it: curves, verdict, report, comparison, live page. Loads no torch.

`folder.RunFolder` opens a run. Imports the base modules, `utils` and `metrics`.
"""
