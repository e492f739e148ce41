"""Costs of a model: parameters and operations, prices of other shapes, latency, memory."""
