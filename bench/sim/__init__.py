"""The simulator: compute and network of a cluster with separate prefill and decode, in one event queue."""
