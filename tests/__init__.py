"""The tests, a folder for each of the package's; what several of them share is imported as `tests.…`."""
