"""What a model costs when it runs: latency, memory, profiles."""
