"""A log-bilinear language model over a learned tree."""
