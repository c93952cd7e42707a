"""The fast path for BERT-like encoders: the library's weights with whet's forward and backward pass on packed tokens.

Query, key and value are one product, there is no padding, and gradients are written to one flat buffer. The last
layer is computed only for the tokens that are read, and unused vocabulary rows cost nothing.

`encoder` is written once for all devices; `cpu/` and `cuda/` hold the operations of a layer and the update.
"""
