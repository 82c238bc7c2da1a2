"""One file per library compared: `VERSION`, `to_numpy`, and `KINDS`, which makes the call of every kind it has.

A peer is loaded by its path in an interpreter where rowgrad may be missing, so no file here imports another.
"""
