"""The memories that the write rules make: gated, modal, and the cache."""

from statelab_plugins.memory.cache import CacheMemory
from statelab_plugins.memory.gated import GatedMemory
from statelab_plugins.memory.modal import ModalMemory

__all__ = ["CacheMemory", "GatedMemory", "ModalMemory"]
