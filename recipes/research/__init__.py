"""What stands behind the numbers of `recipes/results`: claims, rivals, costs. Not in the wheel.

Each is `python -m recipes.research.NAME` from a clone, and says with `-h` what it takes. Those that take hours have a
small setting, by which `tests/test_research.py` runs all of them. A page whose program is gone names the commit at
which it was measured.

claims                          what the README and the evidence say of designs, from the tables
statistics_simulated            how often a study's answers are wrong
checkpoints, checkpoint_page    checkpoints at a share of all parameters, by leanify and by others
vocabulary, vocabulary_law      which tokens stay, and that kept texts compute as before
memory, trips                   predicted memory; calls of one command
folders, layouts, learning      libraries that open lean directories; data of others; what proposed lines learn
gpu, speed, recipe_costs        what things take; recipes/costs.json
"""
