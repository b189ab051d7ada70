"""Prediction over packed weights: what a trained model is, independent of how it was trained."""
