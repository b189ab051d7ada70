"""What models share with `treemax.light`: it needs NumPy alone."""
