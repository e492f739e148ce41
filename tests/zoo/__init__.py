"""What leanify can do with each timm and transformers model: four measured answers, and the laws behind them.

    python -m tests.zoo --check phi              one model; updates its row of leanify/lens/zoo.json
    python -m tests.zoo --check '*' --log FILE   all of them; with the same log it continues where it was stopped
    python -m tests.zoo --propose phi            prints rows for the classes that no row describes

laws       what must hold for every redesigned model; `running` runs models for them
tiny       small versions of both libraries' models
verdict    one model: four answers at the default configuration on meta (read, grow, redesign, control), and the laws
table      many models, and updates of the shipped table
propose    rows for a class without one
"""
