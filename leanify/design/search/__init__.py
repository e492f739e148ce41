"""From a budget and a price list to designs: rules, limits, ranking, control."""
