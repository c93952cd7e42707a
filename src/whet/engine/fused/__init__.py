"""The fast path for BERT-like encoders: the library's weights, our arithmetic.

The model stays the library's: its parameters, its configuration, its head. Only the encoder's forward and backward
passes are written out by hand here, on packed tokens, so that query, key and value are one product, padding exists
nowhere, gradients land in one flat buffer, the last layer is computed only for the tokens that are read, and rows of
the vocabulary that the data never uses cost nothing.

    families.py    where each family keeps its weights
    flat.py        parameters, moments and gradients in flat buffers
    encoder.py     forward and backward of the encoder, for any device
    pieces_cpu.py  the pieces of a layer in torch operations
    pieces_cuda.py the same pieces as Triton kernels
    step.py        a training step on this path
"""
