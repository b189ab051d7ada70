"""What trained models share: their interface, search, linear scorers, and checks of the parts of files."""

from treemax.models.trained.interface import FromAllProbabilities, FromCandidates, TrainedModel

__all__ = ["FromAllProbabilities", "FromCandidates", "TrainedModel"]
