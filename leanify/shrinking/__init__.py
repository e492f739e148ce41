"""`leanify shrink`: a checkpoint, data and a budget of parameters in, the best smaller checkpoint out.

original    the checkpoint with its data and recipe, read once
resolve     how it is found, and what is refused
tokens      the tokens that stay, chosen with the blocks under one budget
candidates  the shapes that meet the budget
carry       the original's weights in a candidate's shape (`leanify.carrying`)
judging     the quality of a model on the splits
time_plan   what fits into the minutes
healing     short trainings of the best, with the original as teacher
folder      findings on disk, from which a killed shrink continues
"""
