"""Machines, devices and processes: who runs where, on which addresses. Knows no HTTP dialect."""
