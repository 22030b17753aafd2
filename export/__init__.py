"""Official checkpoints -> canonical weights -> ONNX graphs with KV-cache I/O -> a bundle."""
