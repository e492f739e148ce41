"""What stands behind the numbers of `recipes/results`: claims, rivals, costs. Not in the wheel.

Each is `python -m recipes.research.NAME` from a clone, and says with `-h` what it takes. Those that take hours have a
small setting, by which `tests/test_research.py` runs all of them. A page whose program is gone names the commit at
which it was measured.

claims                      what the README and the evidence say of designs, from the tables
statistics_simulated        how often a study's answers are wrong
rivals                      smaller shapes of trained models, beside other tools
farthest_point              where more heads do not make up for narrow ones
plans, modules, memory      designs of models that people use, own modules, predicted memory
folders, learning           which libraries open lean directories; what the proposed lines learn
gpu, speed, recipe_costs    what things take; recipes/costs.json
"""
