"""The context of a pass: slots, positions and documents."""

import pytest
import torch
from torch.testing import assert_close

from statelab.errors import RuleError
from statelab.model.context import Context

CPU = torch.device("cpu")


def count(x, *, initial_state=None, cu_seqlens=None, backend="auto"):
    """An operation with one tensor of state."""
    start = torch.zeros(len(x)) if initial_state is None else initial_state
    return x + start[:, None], start + x.sum(1)


def two_fields(x, *, initial_state=None, cu_seqlens=None, backend="auto", scale=1.0):
    """An operation with a dictionary of state, and the count that all layers share."""
    start = {"first": torch.zeros(2), "second": torch.ones(2), "position": None}
    state = initial_state or start
    final = {"first": state["first"] + scale, "second": state["second"] * 2, "position": None}
    seen = 0 if state["position"] is None else int(state["position"][0])
    return x + seen, final


def test_a_slot_is_named_by_the_parts_around_it():
    context = Context(2, 3, device=CPU)
    context.scope("layers.0").scope("memory").run(count, torch.ones(2, 3), slot="values")
    assert set(context.outgoing) == {"position", "layers.0.memory.values"}
    assert_close(context.outgoing["layers.0.memory.values"], torch.tensor([3.0, 3.0]))
    assert context.outgoing["position"].tolist() == [3, 3]


def test_a_state_goes_on_where_it_stood():
    first = Context(2, 3, device=CPU)
    first.scope("a").run(count, torch.ones(2, 3), slot="s")
    second = Context(2, 1, device=CPU, state=first.outgoing)
    out = second.scope("a").run(count, torch.ones(2, 1), slot="s")
    assert_close(out, torch.full((2, 1), 4.0))
    assert second.outgoing["position"].tolist() == [4, 4]
    assert first.outgoing["position"].tolist() == [3, 3]


def test_a_dictionary_of_state_takes_a_slot_a_field_and_the_shared_count():
    first = Context(2, 3, device=CPU)
    first.scope("a").run(two_fields, torch.zeros(2, 3), slot="s", scale=5.0)
    assert set(first.outgoing) == {"position", "a.s.first", "a.s.second"}
    second = Context(2, 1, device=CPU, state=first.outgoing)
    out = second.scope("a").run(two_fields, torch.zeros(2, 1), slot="s", scale=5.0)
    assert out.tolist() == [[3.0], [3.0]]
    assert second.outgoing["a.s.first"].tolist() == [10.0, 10.0]
    assert second.outgoing["a.s.second"].tolist() == [4.0, 4.0]


def test_a_tuple_of_slots_names_the_fields():
    def pair(x, *, initial_state=None, cu_seqlens=None, backend="auto"):
        start = initial_state or {"k": torch.zeros(2), "v": torch.zeros(2)}
        return x, {"k": start["k"] + 1, "v": start["v"] + 2}

    first = Context(2, 1, device=CPU)
    first.scope("a").run(pair, torch.zeros(2, 1), slot=("k", "v"))
    assert set(first.outgoing) == {"position", "a.k", "a.v"}
    second = Context(2, 1, device=CPU, state=first.outgoing)
    second.scope("a").run(pair, torch.zeros(2, 1), slot=("k", "v"))
    assert second.outgoing["a.v"].tolist() == [4.0, 4.0]


def test_documents_and_backend_reach_the_operation():
    seen = {}

    def spy(x, *, initial_state, cu_seqlens, backend):
        seen.update(cu_seqlens=cu_seqlens, backend=backend)
        return x, x

    bounds = torch.tensor([0, 2, 5])
    context = Context(1, 5, device=CPU, cu_seqlens=bounds, backend="reference")
    context.scope("a").run(spy, torch.zeros(1, 5), slot="s")
    assert seen == {"cu_seqlens": bounds, "backend": "reference"}


def test_a_missing_slot_is_named_with_those_there_are():
    state = {"position": torch.zeros(2, dtype=torch.int64), "b.s": torch.zeros(2)}
    context = Context(2, 1, device=CPU, state=state)
    with pytest.raises(
        RuleError, match=r"no slot 'a\.s': it comes from another model\. It has: b\.s, position\."
    ):
        context.scope("a").run(count, torch.ones(2, 1), slot="s")
    with pytest.raises(RuleError, match=r"no slot 'position'.* It has: nothing"):
        Context(2, 1, device=CPU, state={})


def test_a_state_of_another_batch_is_refused():
    state = {"position": torch.zeros(3, dtype=torch.int64)}
    with pytest.raises(RuleError, match=r"the state holds 3 sequences, the input 2\. Carry"):
        Context(2, 1, device=CPU, state=state)
    with pytest.raises(RuleError, match=r"the state holds 3 sequences, the input 2\."):
        Context(1, 5, device=CPU, state=state, cu_seqlens=torch.tensor([0, 2, 5]))


def test_what_an_operation_refuses_is_an_error_of_the_rule():
    def picky(x, **options):
        raise ValueError("no such backend")

    with pytest.raises(RuleError, match="no such backend"):
        Context(1, 1, device=CPU).run(picky, torch.zeros(1, 1), slot="s")


def test_positions_count_on_from_the_state():
    state = {"position": torch.tensor([4, 0])}
    context = Context(2, 3, device=CPU, state=state)
    assert context.positions.tolist() == [[4, 5, 6], [0, 1, 2]]
    assert context.outgoing["position"].tolist() == [7, 3]


def test_positions_begin_anew_in_each_document():
    bounds = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    context = Context(1, 5, device=CPU, cu_seqlens=bounds)
    assert context.positions.tolist() == [[0, 1, 0, 1, 2]]
    assert context.outgoing["position"].tolist() == [2, 0, 3]


def test_positions_of_documents_count_on_from_their_own_states():
    state = {"position": torch.tensor([10, 20, 30])}
    context = Context(1, 5, device=CPU, state=state, cu_seqlens=torch.tensor([0, 2, 2, 5]))
    assert context.positions.tolist() == [[10, 11, 30, 31, 32]]
    assert context.outgoing["position"].tolist() == [12, 20, 33]


@pytest.mark.parametrize(
    ("bounds", "batch"),
    [([1, 5], 1), ([0, 4], 1), ([0, 3, 2, 5], 1), ([0, 5], 2), ([0], 1), ([], 1)],
)
def test_bounds_that_do_not_cover_one_row_are_refused(bounds, batch):
    with pytest.raises(RuleError, match=r"cu_seqlens must rise from 0 to the row's 5 tokens, "):
        Context(batch, 5, device=CPU, cu_seqlens=torch.tensor(bounds, dtype=torch.int64))
