"""The live side of the request tier: what one engine knows and remembers between steps, and the record of its decisions.

The rules are in mfsd.policy.serve; what is particular to one engine is in its adapter (mooncake_adapter.vllm.scheduler).
"""
