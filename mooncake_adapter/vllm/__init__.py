"""vLLM: a connector around any other reports requests, batches, layers and owners of memory."""
