"""``mfsctl doctor``: will programs on this node really be scheduled?

Each check is a file in :mod:`mfsd.observe.doctor.checks`; :mod:`mfsd.observe.doctor.document` writes ``docs/doctor.md``
from them.
"""
