"""Computes one optimizer step and the logits of a batch. It uses no run folder, no loop and no terminal.

`dispatch.choose_path` picks the fastest network and stepper that compute the same training for a model and a device.
Imports the base modules, `utils`, `data`, `models` and `distributed`.
"""
