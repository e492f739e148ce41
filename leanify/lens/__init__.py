"""Read a shape from a model's tensors, write another shape, grow its heads."""
