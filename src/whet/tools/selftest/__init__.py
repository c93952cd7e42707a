"""Interrupts small runs on this machine, resumes them, and compares the results to the bit: `trials.selftest`."""
