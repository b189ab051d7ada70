"""What is measured: one file for each table or figure. benchmarks/README.md lists them."""
