"""`whet bench` and `whet selftest`: tools that run whet itself. Imports anything."""
