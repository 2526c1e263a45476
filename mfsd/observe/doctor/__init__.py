"""``mfsctl doctor``: will programs on this node really be scheduled?

One check is one file in :mod:`mfsd.observe.doctor.checks`; ``docs/doctor.md`` is written from them
(:mod:`mfsd.observe.doctor.document`).
"""
