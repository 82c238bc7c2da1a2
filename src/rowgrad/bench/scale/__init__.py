"""What tables split among processes cost: a model, and runs on this machine that it is held against."""
