"""RDMA devices as libibverbs sees them, by pyverbs (python3-pyverbs, of rdma-core).

pyverbs is built only for the distribution's Python, and a provider may hang or print in the process that loads it. So a
short-lived program of the distribution's Python loads it (:mod:`mfsd.verbs.program`), never the daemon or mfsctl.
"""
