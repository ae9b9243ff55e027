"""The modal memory one token at a time: the definition that every other form is held to."""

from jaxtyping import Complex, Float, Int
from torch import Tensor

...
