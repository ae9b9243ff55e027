"""Left-padded batches become packed documents."""

import pytest
import torch

from statelab.errors import DataError
from statelab.model.padding import unpad


@pytest.mark.parametrize("kind", [torch.bool, torch.int64])
def test_a_left_padded_batch_is_packed(kind):
    tokens = torch.tensor([[9, 9, 1], [2, 3, 4], [9, 5, 6]])
    mask = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 1]]).to(kind)
    row, cu_seqlens = unpad(tokens, mask)
    assert row.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert cu_seqlens.tolist() == [0, 1, 4, 6]
    assert cu_seqlens.dtype == torch.int64


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 1, 1], [1, 1, 0]], r"row 1 of the mask has padding after a token\. Pad on the left"),
        ([[1, 0, 1], [1, 1, 1]], r"row 0 of the mask has padding after a token"),
        ([[1, 1, 1], [0, 0, 0]], r"row 1 of the mask is all padding\. Leave it out"),
        ([[1, 1], [1, 1]], r"tokens and mask must both be \[B, T\], got \[2, 3\] and \[2, 2\]"),
    ],
)
def test_another_mask_is_refused(mask, message):
    with pytest.raises(DataError, match=message):
        unpad(torch.ones(2, 3, dtype=torch.int64), torch.tensor(mask))
