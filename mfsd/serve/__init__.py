"""The live side of the request tier: what one engine knows and remembers between steps, and its decisions on record.

The rules are in mfsd.policy.serve; what is particular to one engine is in its adapter, mooncake_adapter.vllm.scheduler.
"""
