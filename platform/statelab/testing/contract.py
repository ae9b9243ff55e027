"""The checks as test classes: subclass one, name the rule, and pytest runs them all.

    from statelab.testing import WriteRuleContract

    class TestLeaky(WriteRuleContract):
        write = "leaky.py:Leaky"

Each test is a method, which a rule that departs from it on purpose may override.
"""

from __future__ import annotations

import unittest
from typing import ClassVar, TypeVar

from torch import Tensor

from statelab.model.memory import Memory
from statelab.testing import memory, numbers, parameters, sequences
from statelab.testing.check import Check, NotApplicable
from statelab.testing.memory import MemorySubject, memory_of
from statelab.testing.subject import Subject

__all__ = ["MemoryContract", "ReadRuleContract", "WriteRuleContract"]

S = TypeVar("S")


class _RuleContract:
    """What every pair of rules promises.

    Attributes:
        write: The write rule, as on the command line: `gla`, `module:Class`, `file.py:Class`.
        read: The read rule.
        options: More `key=value`: `("write.half_life=3",)`.
    """

    write: ClassVar[str]
    read: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()

    @property
    def subject(self) -> Subject:
        """The pair."""
        return Subject(write=self.write, read=self.read, overrides=self.options)

    def test_a_token_changes_nothing_before_it(self) -> None:
        prove(sequences.causality, self.subject)

    def test_two_halves_give_what_the_whole_gives_wherever_it_is_cut(self) -> None:
        prove(sequences.halves, self.subject)

    def test_one_token_at_a_time_gives_what_the_whole_gives(self) -> None:
        prove(sequences.steps, self.subject)

    def test_packed_documents_are_as_if_apart_and_go_on_apart(self) -> None:
        prove(sequences.packed, self.subject)

    def test_a_left_padded_sequence_is_as_if_alone(self) -> None:
        prove(sequences.left_padded, self.subject)

    def test_the_members_of_a_batch_do_not_see_each_other(self) -> None:
        prove(sequences.batch_size, self.subject)

    def test_the_form_that_runs_gives_what_the_loop_gives(self) -> None:
        prove(sequences.forms, self.subject)

    def test_extreme_inputs_leave_the_forms_alike(self) -> None:
        prove(sequences.extreme_inputs, self.subject)

    def test_no_length_changes_which_form_runs(self) -> None:
        prove(sequences.one_form, self.subject)

    def test_odd_sizes_are_computed_too(self) -> None:
        prove(sequences.odd_sizes, self.subject)

    def test_gradients_are_complete_and_right(self) -> None:
        prove(numbers.gradients, self.subject)

    def test_float32_gives_what_double_gives(self) -> None:
        prove(numbers.float32, self.subject)

    def test_bfloat16_gives_what_double_gives(self) -> None:
        prove(numbers.bfloat16, self.subject)

    def test_autocast_gives_what_double_gives(self) -> None:
        prove(numbers.autocast, self.subject)

    def test_states_are_single_precision_at_least(self) -> None:
        prove(numbers.state_precision, self.subject)

    def test_compiled_it_trains_as_it_does_uncompiled(self) -> None:
        prove(numbers.compiled, self.subject)

    def test_long_input_stays_finite(self) -> None:
        prove(numbers.long_input, self.subject)

    def test_repeated_keys_stay_finite_in_half_precision(self) -> None:
        prove(numbers.repeated_keys, self.subject)

    def test_nothing_depends_on_uninitialised_memory(self) -> None:
        prove(numbers.uninitialised, self.subject)

    def test_a_configuration_is_read_as_it_was_written(self) -> None:
        prove(parameters.config_round_trip, self.subject)

    def test_the_state_is_as_large_as_is_said(self) -> None:
        prove(parameters.state_size, self.subject)

    def test_the_state_does_not_grow_with_the_text(self) -> None:
        prove(parameters.constant_state, self.subject)

    def test_saving_and_loading_changes_nothing(self) -> None:
        prove(parameters.save_and_load, self.subject)

    def test_parameters_start_as_the_rule_says(self) -> None:
        prove(parameters.init, self.subject)

    def test_a_model_can_be_laid_out_first_and_filled_later(self) -> None:
        prove(parameters.meta_device, self.subject)

    def test_the_optimizer_does_as_the_rule_says(self) -> None:
        prove(parameters.optimizer, self.subject)


class _MemoryTests:
    """What a memory that is linear in its stream promises."""

    @property
    def memory(self) -> MemorySubject:
        """The memory."""
        raise NotImplementedError

    def test_reads_are_linear_in_the_stream(self) -> None:
        prove(memory.linear, self.memory)

    def test_project_is_the_adjoint_of_recall(self) -> None:
        prove(memory.adjoint, self.memory)

    def test_reads_of_two_halves_are_those_of_the_whole(self) -> None:
        prove(memory.memory_halves, self.memory)

    def test_each_stream_has_a_slot_of_its_own(self) -> None:
        prove(memory.slots, self.memory)

    def test_streams_of_any_size_are_read(self) -> None:
        prove(memory.other_streams, self.memory)


class WriteRuleContract(_RuleContract, _MemoryTests):
    """What a write rule promises, with one read rule; and the memory that it makes."""

    read: ClassVar[str] = "plain"

    @property
    def memory(self) -> MemorySubject:
        """The memory that the rule makes."""
        try:
            return memory_of(self.subject)
        except NotApplicable as why:
            raise unittest.SkipTest(str(why)) from why


class ReadRuleContract(_RuleContract):
    """What a read rule promises, with one write rule."""

    write: ClassVar[str] = "gla"


class MemoryContract(_MemoryTests):
    """What a class of memories promises; `make` makes one, as a write rule's `forward` does.

    Attributes:
        d_model: Width of x.
        num_heads: H.
        key_dim: K.
        value_dim: V.
    """

    d_model: ClassVar[int] = 10
    num_heads: ClassVar[int] = 2
    key_dim: ClassVar[int] = 4
    value_dim: ClassVar[int] = 6

    def make(self, x: Tensor, k: Tensor, v: Tensor) -> Memory:
        """A memory of x [B, T, d_model], unit keys k [B, T, H, K] and v [B, T, H, V], in float64.

        What it does at a token may depend on that token's x, k and v alone.
        """
        raise NotImplementedError

    @property
    def memory(self) -> MemorySubject:
        """The memory that `make` makes."""
        return MemorySubject(
            make=self.make,
            d_model=self.d_model,
            num_heads=self.num_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
        )


def prove(one: Check[S], subject: S) -> None:
    """Fail with what was measured, or with what the check itself raised; skip what has no meaning.

    Raises:
        AssertionError: If the promise is not kept.
    """
    row = one(subject)
    if row.passed is None:
        raise unittest.SkipTest(row.detail)
    if not row.passed:
        far = "" if row.measured is None else f" is missed by {row.measured:.3g}"
        limit = "" if row.measured is None else f", {row.allowed:.3g} is allowed"
        raise AssertionError(f"{one.what}{far}{limit}: {row.detail}") from row.error
