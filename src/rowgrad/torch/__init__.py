"""rowgrad for torch."""
