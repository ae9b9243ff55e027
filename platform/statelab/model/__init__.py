"""The decoder and what it is put together from."""
