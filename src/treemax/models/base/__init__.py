"""What the estimators of all models inherit: validation, predictions, saving, changes of labels."""
