from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from statelab.data.lightning_data import LightningData, build_data
from statelab.data.loader import EpochLoader
from statelab.data.module import IGNORED, Batch
from statelab.data.mqar import MQAR, MQARConfig
from statelab.data.order import PADDING, batches, permutation, share
from statelab.data.text import Text, TextConfig
from statelab.errors import UnknownNameError

CONFIG = MQARConfig(
    name="mqar", seq_len=16, num_pairs=(2, 4), batch_size=8, num_train=60, num_val=20
)
EPOCH = 8  # batches: seven of 8 examples, and one of 4


def data_of(config: MQARConfig = CONFIG, *, batches_finished: int = 0) -> LightningData:
    data = LightningData(MQAR(config), config)
    data.load_state_dict({"batches_finished": batches_finished})
    return data


def train(data: LightningData, num: int) -> list[Batch]:
    """The next batches, over as many epochs as they take, as the trainer asks for them."""
    batches: list[Batch] = []
    for batch in islice(data.train_dataloader(), num):
        batches.append(batch)
        data.advance()
    return batches


def assert_equal(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


class Numbers:
    """Examples that say their number."""

    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def batch(self, index: np.ndarray) -> Batch:
        numbers = torch.from_numpy(index)[:, None]
        return {"tokens": numbers, "labels": numbers.clone()}


def numbers_of(num: int, batch_size: int, rank: int, world: int) -> list[list[int]]:
    loader = EpochLoader(
        Numbers(num),
        order=lambda epoch: permutation(num, seed=0, epoch=epoch),
        batch_size=batch_size,
        rank=rank,
        world=world,
    )
    batches = [batch["labels"].flatten().tolist() for batch in loader]
    assert len(batches) == len(loader)
    return batches


def test_every_epoch_holds_every_example_once_in_another_order() -> None:
    orders = [permutation(1000, seed=0, epoch=epoch) for epoch in range(3)]
    orders.append(permutation(1000, seed=1, epoch=0))
    for order in orders:
        assert sorted(order.tolist()) == list(range(1000))
    for i, order in enumerate(orders):
        assert all(np.mean(order == other) < 0.02 for other in orders[:i])
        assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.15


def test_the_order_is_the_same_on_every_machine() -> None:
    assert permutation(10, seed=3, epoch=2).tolist() == [0, 8, 2, 3, 1, 6, 4, 7, 5, 9]


def test_an_epoch_keeps_its_short_last_batch() -> None:
    batches = numbers_of(60, 8, 0, 1)
    assert [len(batch) for batch in batches] == [8] * 7 + [4]
    assert sorted(chain(*batches)) == list(range(60))


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("num", [1, 2, 7, 24, 25, 47, 48, 49, 60])
def test_ranks_share_an_epoch_without_loss_or_doubling(num: int, world: int) -> None:
    batch_size = 12 // world
    ranks = [numbers_of(num, batch_size, rank, world) for rank in range(world)]
    whole = numbers_of(num, 12, 0, 1)
    assert {len(batches) for batches in ranks} == {len(whole)}
    for k, batch in enumerate(whole):
        parts = [batches[k] for batches in ranks]
        assert len({len(part) for part in parts}) == 1
        assert sorted(n for n in chain(*parts) if n != IGNORED) == sorted(batch)
        # On no rank is there more than one row of padding.
        assert all(part.count(IGNORED) <= 1 for part in parts)


def test_padding_closes_the_shares_of_the_later_ranks() -> None:
    shares = [share(np.arange(5), rank=rank, world=3).tolist() for rank in range(3)]
    assert shares == [[0, 3], [1, 4], [2, PADDING]]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_validation_has_every_example_once_over_all_ranks(world: int) -> None:
    counts = []
    for rank in range(world):
        data = data_of()
        data.trainer = trainer_of(rank, world)
        counts += [(batch["labels"] != IGNORED).sum().item() for batch in data.val_dataloader()]
    whole = MQAR(CONFIG).val().batch(np.arange(20))["labels"]
    assert sum(counts) == (whole != IGNORED).sum()


def trainer_of(rank: int, world: int) -> SimpleNamespace:
    return SimpleNamespace(distributed_sampler_kwargs={"rank": rank, "num_replicas": world})


SEGMENTS = replace(
    CONFIG,
    segments=("16/2 x 50", "8/1 x 21", "12/3 x 3"),
    val_segments=("8/2 x 10", "16/4 x 5"),
    filler="random",
)


def test_batches_hold_one_group_each_and_lose_nothing() -> None:
    order, groups = permutation(74, seed=0, epoch=1), (50, 21, 3)
    found = batches(order, groups, 8)
    assert sorted(np.concatenate(found).tolist()) == list(range(74))
    assert len(found) == 7 + 3 + 1
    kinds = [np.unique(np.searchsorted([50, 71], each, side="right")) for each in found]
    assert all(len(each) == 1 for each in kinds)
    # In each group the order is the epoch's, and only its last batch is short.
    for kind in range(3):
        own = [each for each, of in zip(found, kinds, strict=True) if of == kind]
        assert all(len(each) == 8 for each in own[:-1])
        members = [n for n in order if np.searchsorted([50, 71], n, side="right") == kind]
        assert np.concatenate(own).tolist() == members


def test_the_batches_of_groups_are_spread_over_the_epoch() -> None:
    groups = (4000, 4000)
    found = batches(permutation(8000, seed=0, epoch=0), groups, 8)
    first = np.array([each[0] < 4000 for each in found])
    assert 0.4 < np.mean(first[:500]) < 0.6
    assert np.corrcoef(first[1:], first[:-1])[0, 1] < 0.5


def test_a_single_group_keeps_the_order_of_the_epoch() -> None:
    order = permutation(60, seed=0, epoch=0)
    found = batches(order, (60,), 8)
    assert np.concatenate(found).tolist() == order.tolist()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_every_batch_of_segments(world: int) -> None:
    ranks = []
    for rank in range(world):
        data = data_of(replace(SEGMENTS, batch_size=12 // world))
        data.trainer = trainer_of(rank, world)
        ranks.append(train(data, 2 * 8))
    whole = train(data_of(replace(SEGMENTS, batch_size=12)), 2 * 8)
    for k, batch in enumerate(whole):
        parts = [each[k] for each in ranks]
        assert {part["tokens"].shape[1] for part in parts} == {batch["tokens"].shape[1]}
        assert len({len(part["tokens"]) for part in parts}) == 1
        rows = [row for part in parts for row in part["labels"].tolist() if max(row) > IGNORED]
        assert sorted(rows) == sorted(batch["labels"].tolist())


def test_segments_are_validated_one_after_the_other_at_their_own_lengths() -> None:
    found = list(data_of(SEGMENTS).val_dataloader())
    assert [list(each["tokens"].shape) for each in found] == [[8, 8], [2, 8], [5, 16]]
    assert [set(each["slice"].tolist()) for each in found] == [{0}, {0}, {1}]


@pytest.mark.parametrize("stop", [0, 3, 10, 11, 12, 25])
def test_segments_continue_with_the_next_batch(stop: int) -> None:
    unbroken = train(data_of(SEGMENTS), 33)
    config = replace(SEGMENTS, num_workers=2 if stop == 12 else 0)
    assert_equal(train(data_of(config, batches_finished=stop), 33 - stop), unbroken[stop:])


def test_the_rank_comes_from_the_trainer() -> None:
    firsts = []
    for rank in (0, 1):
        data = data_of()
        data.trainer = trainer_of(rank, 2)
        firsts.append(next(iter(data.train_dataloader()))["tokens"])
    merged = torch.stack(firsts, dim=1).flatten(0, 1)
    alone = next(iter(data_of(replace(CONFIG, batch_size=16)).train_dataloader()))["tokens"]
    assert torch.equal(merged, alone)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_change_no_batch(num_workers: int) -> None:
    config = replace(CONFIG, filler="random")
    alone, helped = data_of(config), data_of(replace(config, num_workers=num_workers))
    assert_equal(train(helped, 11), train(alone, 11))
    assert_equal(list(helped.val_dataloader()), list(alone.val_dataloader()))


@pytest.mark.parametrize("stop", [0, 3, EPOCH - 1, EPOCH, EPOCH + 1, 2 * EPOCH, 2 * EPOCH + 5])
def test_a_new_process_continues_with_the_next_batch(stop: int) -> None:
    unbroken = train(data_of(), 3 * EPOCH)
    first = data_of()
    before = train(first, stop)
    second = data_of()
    second.load_state_dict(first.state_dict())
    assert_equal(before + train(second, 3 * EPOCH - stop), unbroken)


def test_workers_continue_with_the_next_batch_too() -> None:
    unbroken = train(data_of(), EPOCH + 5)
    config = replace(CONFIG, num_workers=2)
    assert_equal(train(data_of(config, batches_finished=EPOCH + 2), 3), unbroken[EPOCH + 2 :])


def test_training_goes_on_over_the_end_of_an_epoch_and_validation_ends() -> None:
    sizes = [len(batch["tokens"]) for batch in train(data_of(), 2 * EPOCH)]
    assert sizes == [*[8] * 7, 4] * 2
    assert not hasattr(data_of().train_dataloader(), "__len__")
    assert len(data_of().val_dataloader()) == len(list(data_of().val_dataloader())) == 3


def test_validation_in_between_changes_nothing() -> None:
    data = data_of()
    before = train(data, 3)
    first, second = list(data.val_dataloader()), list(data.val_dataloader())
    assert_equal(first, second)
    assert_equal(before + train(data, 9), train(data_of(), 12))


def test_state_holds_the_position_alone() -> None:
    data = data_of()
    train(data, 10)
    assert data.state_dict() == {"batches_finished": 10}
    assert data.train_dataloader().state_dict() == {}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loading_leaves_the_global_generators_alone(num_workers: int) -> None:
    data = data_of(replace(CONFIG, num_workers=num_workers))
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]
    train(data, 2)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


def test_text_is_loaded_by_workers_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(256)) * 8)
    config = TextConfig(name="text", files=str(tmp_path / "a.txt"), seq_len=32, batch_size=8)
    alone = train(LightningData(Text(config), config), 10)
    config = replace(config, num_workers=2)
    assert_equal(train(LightningData(Text(config), config), 10), alone)


def test_lightning_sees_vocabulary_slices_and_bytes() -> None:
    data = data_of()
    assert data.vocab_size == 8192
    assert data.slices == ("kv_2", "kv_4")
    assert data.num_bytes(torch.zeros(2, 3, dtype=torch.int64)) is None


def test_an_unknown_data_module_names_the_near_one() -> None:
    config = SimpleNamespace(data=replace(CONFIG, name="mqr"))
    with pytest.raises(UnknownNameError, match="unknown data module 'mqr'"):
        build_data(config)


@pytest.mark.parametrize("module", ["mqar", "text"])
def test_keys_of_a_data_module_are_listed_without_lightning(module: str) -> None:
    heavy = "{'lightning', 'datasets', 'mlflow', 'optuna', 'triton', 'transformers'}"
    code = f"import sys, statelab.data.{module}; sys.exit(str({heavy} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""
