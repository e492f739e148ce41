"""Carry a trained model's weights into a smaller shape, with its knowledge, by statistics of calibration data.

        blocks       a model with other blocks in its lists
        residual     residual sublayers of a block, found by running it
        norms        gains and biases folded into the projections beside a norm
        pair         two consecutive layers as one with twice the heads
        fit          two post-norm layers as one, fitted by least squares on their activations
        join         two blocks as one of a given shape, by a pair or a fit
        choose       selection of the heads and hidden units to keep, and their least-squares output projection
        narrow       fewer heads, hidden units and experts
        rotation     a narrower residual stream, in its principal components
        calibration  statistics of a model on calibration data, and the recorded calls of its blocks
        teacher      the original with its outputs on calibration data, which measures the damage
        transfer     all of these together: from a trained model to a given shape
        free         a separate shape for every block

Each function takes a model and returns a new one; the input model is not changed.
"""
