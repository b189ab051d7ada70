"""One linear classifier for every label, trained by AdaGrad: the baseline of all four papers."""
