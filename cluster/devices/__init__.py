"""NPUs of one machine: what the vendor's tools and files say, and which number means which device.

Parsers take text and know no machine; `detect.py` alone runs commands and reads folders.
"""
