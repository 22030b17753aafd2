"""The benchmarks behind the README's table; each prints ratios against a baseline of the same run."""
