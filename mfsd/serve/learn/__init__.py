"""Learning from recorded requests whether a call will use a tool and how long its answer will be (Maestro III-B).

Read in this order: rows (the recorded requests), features, model (the file, prediction), prior (without a model),
train, measure. Training needs the extra `learn`; prediction needs LightGBM but not scikit-learn.
"""
