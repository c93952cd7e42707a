"""Training steps of any library model on CUDA, captured as graphs.

`stepper.CapturedStepper` takes the steps of a run, `loop_step.CapturedLoopStep` those of a user's own loop. The model
stays the library's own; inputs, gradients and the update have fixed places in memory, so that a step is one launch.
"""
