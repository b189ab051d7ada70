"""Why a model answered as it did: the path through the tree, and what each feature added."""

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
