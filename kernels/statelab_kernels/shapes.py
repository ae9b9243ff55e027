"""Shape checks that hold outside tests too, where jaxtyping's annotations are not enforced."""

from collections.abc import Mapping

from torch import Tensor


def check_shapes(tensors: Mapping[str, tuple[Tensor | None, str]], **sizes: int) -> None:
    """Check that axes of one letter have one size.

    Args:
        tensors: For each argument's name the tensor, or None, and its axes, such as "BTHK".
        sizes: Axes whose size is known beforehand.

    Raises:
        ValueError: Naming the first tensor that doesn't fit, what it needs and what it has.
    """
    for name, (tensor, axes) in tensors.items():
        if tensor is None:
            continue
        needed = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes)
        fits = tensor.ndim == len(axes) and all(
            sizes.setdefault(axis, size) == size
            for axis, size in zip(axes, tensor.shape, strict=True)
        )
        if not fits:
            raise ValueError(f"{name} must have shape [{needed}], got {list(tensor.shape)}.")
