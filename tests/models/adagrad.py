"""AdaGrad in plain NumPy, for the references of the online trees."""

import numpy as np


def step(gradient, squares, rate, initial):
    """The step of every weight, the last of which is the bias: its constant feature is as small as the others, at most 1."""
    constant = np.ones(len(gradient))
    constant[-1] = min(1.0, np.sqrt(initial))
    return rate * constant * gradient / np.sqrt(squares + initial / constant**2)
