"""The `digits` data set of TensorFlow Datasets: UCI's 8x8 handwritten digits, shipped with tfdist."""
