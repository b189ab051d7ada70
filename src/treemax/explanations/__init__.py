"""Explanations of predictions: the path through the tree, and the contribution of each feature."""

from treemax.explanations.explanation import (
    Alternative,
    Candidate,
    Explanation,
    Path,
    Span,
    Step,
    Trace,
    linear_step,
    total_added,
)

__all__ = ["Alternative", "Candidate", "Explanation", "Path", "Span", "Step", "Trace", "linear_step", "total_added"]
