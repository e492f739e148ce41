"""Designs under a budget: count, price, search, plan, profile."""
