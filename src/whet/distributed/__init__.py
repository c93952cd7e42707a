"""Several processes as one run: rank and world from the environment, rendezvous, collectives.

`rendezvous.join_processes` returns the group; `environment` reads what the launcher set and loads no torch.
Imports `errors` and `utils`.
"""
