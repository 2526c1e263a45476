"""RDMA devices as libibverbs sees them, by pyverbs (python3-pyverbs, of rdma-core).

pyverbs is built for the distribution's Python alone, and a provider may hang or print in the process that loads it. So
a short-lived program (:mod:`mfsd.verbs.program`) of the distribution's Python loads it, never the daemon or mfsctl.
"""
