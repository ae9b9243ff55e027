"""Text at scale: documents from anywhere, tokenised once into files that training maps into memory.

`sources.py` reads documents, `tokenizer.py` turns them into tokens, `shards.py` is the files'
format, `plan.py` says what goes into them, `tokenise.py` writes them, `stream.py` reads them, and
`bpe.py` trains a tokenizer. `data/hf.py` makes them the data of a run.
"""
