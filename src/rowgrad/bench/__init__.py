"""The benchmarks behind `rowgrad bench`: workloads, peers, measurements; nothing else in rowgrad imports this."""
