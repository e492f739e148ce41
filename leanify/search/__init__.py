"""Designs under a budget: options, grid, rules, ranking, control, plan."""
