"""Cost of tables sharded among processes: a model, and runs that check it."""
