"""What the training of several models shares."""
