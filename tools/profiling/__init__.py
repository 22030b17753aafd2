"""Where the time of a run goes, and what would make it faster."""
