"""What only the paper's experiments need: the Long-Range Arena, models that no library has, the audit."""
