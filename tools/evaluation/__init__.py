"""What a setting costs and what it yields: rules side by side on a bundle, and the measures of their pictures."""
