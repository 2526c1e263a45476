"""Requests with deadlines and programs of requests on simulated engines: runs, capacities, claims, replays.

Read in this order: settings, lengths, tiers, programs, drift, policies, point, run, capacity, claims. The commands'
answers are in docs/requests.md.
"""
