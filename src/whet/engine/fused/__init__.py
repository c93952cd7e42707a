"""The fast path for BERT-like encoders: the library's weights, whet's forward and backward pass on packed tokens.

Query, key and value are one product, padding does not exist, gradients land in one flat buffer, the last layer is
computed only for the tokens that are read, and vocabulary rows that the data never uses cost nothing.
`encoder` is written once for all devices; `cpu/` and `cuda/` hold the operations of a layer and the update.
"""
