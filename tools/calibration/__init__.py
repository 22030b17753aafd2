"""Choosing draft length and schedule for a pair, a machine and a drift budget."""
