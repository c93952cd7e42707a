"""Layer operations, attention and AdamW of the fused path as Triton kernels, and steps captured as CUDA graphs."""
