"""The gateway: one address in front of several engines, OpenAI's API in and out. `mfsd --gateway`; docs/gateway.md.

Which replica gets a call is decided by mfsd.policy.route. Read in this order: settings, prompt, xargs, prefixes,
replicas, upstream, ports, poll, reconnect, admission, answer, ongoing, responses, core, exchange, turn, pd, front,
proxy (HTTP), kept, picked, picker (a proxy asks), app.
"""
