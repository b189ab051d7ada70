"""What trains the parts of a model, independent of the estimator that asks for it."""
