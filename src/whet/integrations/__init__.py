"""Experiment trackers and notebooks, fed with the records of a run. Imports the base modules, `utils` and `runs`."""
