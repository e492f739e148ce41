"""Read a shape from a model's tensors, write another shape or width, grow its heads."""
