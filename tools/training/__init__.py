"""Training of the demo models: tokenizer, class-conditional target and EAGLE draft. Needs the `torch` extra."""
