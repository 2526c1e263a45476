"""The gateway: one address in front of several engines, with OpenAI's API on both sides. `mfsd --gateway`;
docs/gateway.md.

mfsd.policy.route decides which replica gets a call. Read in this order: settings, prompt, xargs, prefixes,
replicas, upstream, ports, poll, reconnect, admission, backend, life, sleep, foreign, residents (engines that the
gateway starts), answer, ongoing, responses, core, exchange, turn, pd, front, proxy (HTTP), kept, picked, picker (a
proxy asks), app.
"""
