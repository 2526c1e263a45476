"""The live side of the request tier: the state that one engine keeps between steps, and the record of its decisions.

The rules are in mfsd.policy.serve; code for one kind of engine is in its adapter, mooncake_adapter.vllm.scheduler.
"""
