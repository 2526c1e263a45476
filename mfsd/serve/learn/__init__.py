"""Learning from recorded requests whether a call will use a tool and how long its answer will be (Maestro III-B).

Read in this order: rows (what is recorded), features, model (the file, prediction), prior (where there is no model),
train, measure. Training needs the extra `learn`; prediction needs LightGBM, and no scikit-learn.
"""
