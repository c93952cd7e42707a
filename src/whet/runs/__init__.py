"""What is read from a run folder: curves, verdict, comparison, report. No torch."""
