"""Learning from recorded requests whether a call will use a tool and how long its answer will be (Maestro III-B).

Read in this order: rows (the recorded requests), writer (appends them to a file), features, trees, model (the file,
prediction), prior (without a model), train, measure. Training needs the extra `learn`; prediction needs LightGBM but
not scikit-learn. The live writer and reader is the gateway (`mfsd.serve.gateway.predict`).
"""
