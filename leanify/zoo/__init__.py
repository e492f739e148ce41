"""What leanify can do with each timm and transformers model: four measured answers, and the laws behind them.

table      the shipped answers, and how to update them
verdict    one model: four answers at the default configuration on meta (read, grow, redesign, control), and the laws
laws       what must hold for every redesigned model; `running` runs models for them
tiny       small versions of both libraries' models
propose    suggest rows for a class without one
"""
