"""The coordinator: one order of all batches of the cluster, given to the daemons (design, control plane)."""
