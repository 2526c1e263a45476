"""What crosses the network between daemons and coordinators: messages, versions, limits and certificates.

Nothing here imports gRPC until a credential or a channel is needed.
"""
