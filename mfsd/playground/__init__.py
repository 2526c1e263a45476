"""A cluster on one machine: nodes as network namespaces, each with a RoCE device made of TCP and a daemon.

It is what `mfsctl playground` starts; the testbed of `bench` stands on the same namespaces and processes.
"""
