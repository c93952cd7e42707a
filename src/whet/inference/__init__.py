"""A saved model at work: predict and evaluate. `predictor.Predictor` is the entry point.

Imports everything below `training`, and not `training`.
"""
