"""Softmax trees and forests, trained by tree alternating optimisation."""
