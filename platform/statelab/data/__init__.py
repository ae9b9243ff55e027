"""Data: what a model learns from, in an order that any run can continue exactly.

`module.py` says what a data module is, `mqar.py` and `text.py` are two of them, `order.py`,
`loader.py` and `packing.py` turn examples into batches, and `lightning_data.py` hands those to
Lightning.
"""
