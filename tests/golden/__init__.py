"""A checkpoint of the current file format, kept so that later versions are known to read it.

`python -m tests.golden` writes it again, which is only right where the format's number was raised.
"""
