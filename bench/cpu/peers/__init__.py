"""One file per library: `VERSION`, `to_numpy`, and `KINDS`, which maps a kind to a function that prepares its call.

The worker loads a peer by its path, in an interpreter that may lack rowgrad, so no file here imports another.
"""
