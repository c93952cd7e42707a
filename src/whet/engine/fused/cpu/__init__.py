"""Layer operations and AdamW of the fused path in torch operations, for the CPU."""
