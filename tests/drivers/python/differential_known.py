"""Where FerretDB 1.24.2 is known to answer otherwise than MongoDB, with the answer MongoDB's rules ask for."""

KNOWN = {}
