"""ONNX graphs written directly, node by node: the target, the draft, the image decoder."""
