"""The meta controller: chooses an order of the pool every 30 s from what the engine's requests experienced.

After H-MAS 3.3, 3.4.1, appendix C. Pure: the caller reports events to `Qos`, asks for its views, and calls `decide`.
Each strategy has a file: rules (default), drift, classifier, bandit; llm reads the answer of a model that the caller
asks. `guard` has the bypass and the rollback, which apply under every strategy.
"""

from mfsd.policy.serve.meta.config import MetaConfig, Strategy
from mfsd.policy.serve.meta.controller import Decision, MetaState, configured, decide
from mfsd.policy.serve.meta.qos import Qos
from mfsd.policy.serve.meta.view import LongView, ShortView, Views

__all__ = [
    "Decision",
    "LongView",
    "MetaConfig",
    "MetaState",
    "Qos",
    "ShortView",
    "Strategy",
    "Views",
    "configured",
    "decide",
]
