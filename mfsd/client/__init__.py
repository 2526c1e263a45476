"""Lets engines announce what their transfers are for, and ask for permits. See docs/api.md.

    from mfsd.client import Flow, Request, Session, Stage

    session = Session.open()
    nic = session.nic("mlx5_0")
    with session.batch(7, layers=32, requests=[Request(41, deadline_ns=due)]) as batch:
        for layer in range(32):
            batch.layer(layer)
            ...
        with session.submit(size, stage=Stage.P2D, nic=nic, request_id=41, batch=batch) as task:
            send(lane[task.wire_class])

Nothing here raises into a transfer: without a daemon every task is permitted at once.
"""

from mfsd._native import Mode, Stage
from mfsd.client.batch import Batch
from mfsd.client.session import Session
from mfsd.client.task import Task
from mfsd.client.types import Flow, Outlook, Request, Waiting

__all__ = ["Batch", "Flow", "Mode", "Outlook", "Request", "Session", "Stage", "Task", "Waiting"]
