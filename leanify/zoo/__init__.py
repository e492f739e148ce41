"""What each model of timm and transformers allows, measured: four answers, and the laws behind them.

table      the answers that are shipped, and how to change one
verdict    one model: its answers at its default configuration, on meta, and the laws at a small size
answers    read, grow, redesign, control
laws       what must hold of every redesigned model; `running` runs models for them
unset      what upstream's default configurations leave unset
tiny       small versions of both libraries' models
isolated   many models, in processes that may crash or hang
propose    rows for a class that no row describes
"""
