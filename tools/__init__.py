"""What surrounds the runtime: the command line, training, benchmarks, evaluation."""
