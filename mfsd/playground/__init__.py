"""A cluster on one machine. Each node is a network namespace with a daemon and a RoCE device that runs over TCP.

`mfsctl playground` starts it. The testbed of `bench` uses the same namespaces and processes.
"""
