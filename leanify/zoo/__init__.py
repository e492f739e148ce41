"""What leanify can do with each timm and transformers model: four measured answers, and the laws behind them.

table      the shipped answers, and how to update them
verdict    one model: its answers at the default configuration on meta, and the laws at a small size
answers    read, grow, redesign, control
laws       what must hold for every redesigned model; `running` runs models for them
tiny       small versions of both libraries' models
propose    suggest rows for a class without one
"""
