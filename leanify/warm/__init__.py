"""Warm start: a lean model made from a trained one, so that it keeps what the trained one knew.

    axes         which axes of a layer's tensors hold heads or hidden units
    blocks       a model with other blocks in its lists
    residual     the residual sublayers of a block, found by running it
    pair         two consecutive layers as one with twice the heads
    fit          two post-norm layers as one, by least squares on what they did
    choose       which heads and hidden units stay
    correction   the least-squares output projection of those
    narrow       fewer heads and hidden units
    calibration  what a model computes on calibration data
    carry        all of these together: from a trained model to a given shape
    free         a shape of its own for every block

Each function takes a model and returns a new one; the input model is not changed.
"""
