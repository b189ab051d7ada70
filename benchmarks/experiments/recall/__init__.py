"""The experiments of the paper on recall trees, in shape, on our data, one file each; see `__main__`."""
