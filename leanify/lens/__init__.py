"""The lens: read a shape from a model's tensors, write another shape into it, grow its heads."""
