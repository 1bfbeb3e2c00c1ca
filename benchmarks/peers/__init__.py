"""The sides of the comparisons: each module is a whole worker program, as its user would write it."""
