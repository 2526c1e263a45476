"""The simulator: compute and network of a prefill/decode-disaggregated cluster in one event queue."""
