"""Solve A x = b for a symmetric positive A that is only known by its products with vectors.

All vectors lie along the last axis; every other axis is a system of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Product", "chebyshev", "conjugate_gradients", "solve"]

Product = Callable[[Tensor], Tensor]
"""A vector to A times it."""


def solve(product: Product, b: Tensor, inverse: Callable[[Tensor], Tensor]) -> Tensor:
    """Find x with A x = b, differentiable in b and in whatever `product` depends on.

    With y = A^-1 dx, the gradient of b is y, and that of A's parameters is the gradient of
    -y' A x with x and y held fixed: one more solve in the backward, and no step of either kept.

    Args:
        product: A, called once, with gradients.
        b: The right-hand sides.
        inverse: A solver of A x = b, called without gradients, in the backward again.
    """
    with torch.no_grad():
        x = inverse(b)
    solution: Tensor = _Solution.apply(b - product(x), x, inverse)  # type: ignore[no-untyped-call]
    return solution


def conjugate_gradients(product: Product, b: Tensor, num_steps: int) -> Tensor:
    """Conjugate gradients from x = 0, a fixed number of steps.

    A search direction p that has lost all of b but its rounding is not followed: where p' A p is
    no more than eps^2 |b|^2, x stays. An absolute floor would keep small b from being solved.

    Source: Hestenes and Stiefel 1952.
    """
    x, r, p = torch.zeros_like(b), b, b
    power = _dot(r, r)
    floor = torch.finfo(b.dtype).eps ** 2 * power
    for _ in range(num_steps):
        turned = product(p)
        curvature = _dot(p, turned)
        step = torch.where(curvature > floor, power / curvature, 0)
        x, r = x + step * p, r - step * turned
        before, power = power, _dot(r, r)
        p = r + torch.where(before > 0, power / before, 0) * p
    return x


def chebyshev(product: Product, b: Tensor, low: Tensor, high: Tensor, num_steps: int) -> Tensor:
    """Chebyshev's iteration: no inner products, and so the same error whatever b is.

    Args:
        product: A.
        b: The right-hand sides.
        low: Nothing in A's spectrum is below it, > 0; [..., 1].
        high: Nothing is above it.
        num_steps: The first step included, which takes no product; >= 1.

    Source: Golub and Varga 1961, in three terms.
    """
    step, rho = 2 / (high + low), (high - low) / (high + low)
    before, x = torch.zeros_like(b), step * b
    omega = torch.full_like(rho, 2)
    for _ in range(num_steps - 1):
        omega = 1 / (1 - rho.square() * omega / 4)
        before, x = x, omega * (x + step * (b - product(x))) + (1 - omega) * before
    return x


class _Solution(torch.autograd.Function):
    """x, as if it were A^-1 times the residual b - A x that it leaves."""

    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, x: Tensor, inverse: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.inverse = inverse
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None, None]:
        return ctx.inverse(d_x), None, None


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)
