"""X and y as callers bring them, checked and converted."""
