"""Part of tfdist."""
