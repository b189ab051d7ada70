"""Vectorisers for texts, and the model that holds one."""
