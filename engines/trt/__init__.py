"""TensorRT, both flavours: plans are built from the bundle's graphs, stored in the bundle, and driven from NumPy."""
