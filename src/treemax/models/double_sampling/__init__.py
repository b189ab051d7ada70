"""Double sampling: one small linear model over similarities of rows and classes."""
