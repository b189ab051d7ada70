"""Recall trees: an online tree finds candidates, one-against-some regressors pick among them."""
