"""Measurements of Rayscend, and what they need: each program rewrites its section of the docs."""
