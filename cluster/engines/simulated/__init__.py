"""An engine that keeps time instead of computing, for exact tests and for trying configurations.

`engine.py` is what Rayscend must know of it; the rest is the program, whose entry is `server.py`.
"""
