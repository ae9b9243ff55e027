"""Sizes: the papers' parameter counts, and states of exactly the bytes that a pass hands out."""

import itertools
import json
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from statelab.loading import load_config, to_dict
from statelab.model.build import build_model
from statelab.sizes import measure

WRITES = ("linear", "gla", "deltanet", "gated_deltanet", "s4d")
PAIRS = [*itertools.product(WRITES, ("plain", "ccq", "interdomain")), ("kv", "softmax")]

#: The counts of each arm. Source: arXiv:2605.24330, whose tables round them.
PAPER = {
    "125m": {"softmax": 134_105_856, "interdomain": 135_416_208, "s4d": 135_425_424},
    "350m": {"softmax": 373_867_520, "interdomain": 377_360_768, "s4d": 377_385_344},
    "760m": {"softmax": 777_856_512, "interdomain": 781_498_752, "s4d": 781_523_328},
    "1p3b": {"softmax": 1_345_423_360, "interdomain": 1_352_406_784, "s4d": 1_352_455_936},
}


@pytest.mark.parametrize("size", PAPER)
@pytest.mark.parametrize("arm", ["softmax", "interdomain", "s4d"])
def test_the_papers_counts_come_out_to_the_last_parameter(size, arm):
    model = build_model(load_config(f"interdomain_{size}", [f"arm={arm}"]), device="meta")
    assert sum(p.numel() for p in model.parameters()) == PAPER[size][arm]


@pytest.mark.parametrize("write", WRITES[:4])
def test_ccq_adds_a_vector_and_a_number_a_head(toy_config, write):
    plain = measure(toy_config(f"write={write}", "read=plain"))
    ccq = measure(toy_config(f"write={write}", "read=ccq"))
    heads, size, layers = 2, 8, 2
    assert ccq.parameters - plain.parameters == layers * heads * (size + 1)
    # The sums of k k' and of k, in fp32.
    assert ccq.memory_bytes - plain.memory_bytes == layers * heads * (size * size + size) * 4


def test_ccq_on_s4d_adds_queries_and_their_map(toy_config):
    plain = measure(toy_config("write=s4d", "read=plain"))
    ccq = measure(toy_config("write=s4d", "read=ccq"))
    heads, size, modes, layers = 2, 8, 4, 2
    gate, query_map = heads * (size + 1), heads * size * modes * 2
    query, conv = 16 * 16, 4 * 16
    assert ccq.parameters - plain.parameters == layers * (gate + query_map + query + conv)


@pytest.mark.parametrize(("write", "read"), PAIRS)
def test_the_bytes_are_those_of_the_slots_that_a_pass_hands_out(toy_config, write, read):
    config = toy_config(f"write={write}", f"read={read}", "model.mixer.conv=4")
    sizes = measure(config)
    tokens = torch.zeros(1, config.data.seq_len, dtype=torch.int64)
    with torch.no_grad():
        _, state = build_model(config)(tokens)
    assert sizes.state_bytes == sum(each.nbytes for each in state.values())
    memory = {k: v for k, v in state.items() if ".conv." not in k and k != "position"}
    assert sizes.memory_bytes == sum(each.nbytes for each in memory.values())
    assert 0 < sizes.memory_bytes < sizes.state_bytes


def test_the_bytes_of_a_gated_memory_are_those_of_a_matrix_a_head(toy_config):
    sizes = measure(toy_config("model.head_dim=6", "model.value_dim=10"))
    assert sizes.memory_bytes == 2 * 2 * 6 * 10 * 4
    assert sizes.state_bytes == sizes.memory_bytes + 8  # the position


def test_the_bytes_of_a_cache_grow_with_the_sequence_up_to_its_window(toy_config):
    pair = ("write=kv", "read=softmax")
    assert measure(toy_config(*pair)).memory_bytes == 2 * 2 * 2 * 8 * 16 * 4
    longer = measure(toy_config(*pair, "data.seq_len=32"))
    assert longer.memory_bytes == 2 * 2 * 2 * 8 * 32 * 4
    windowed = measure(toy_config(*pair, "read.window=5"))
    assert windowed.memory_bytes == 2 * 2 * 2 * 8 * 4 * 4


def test_the_layers_add_up(toy_config):
    config = toy_config(
        "model.layers=[memory, attention(window=5), conv(width=3)]", "model.num_layers=3"
    )
    sizes = measure(config)
    assert [each["kind"] for each in sizes.per_layer] == ["memory", "attention", "conv"]
    outside = 32 * 16 + 16  # tied embedding, final norm
    assert sum(each["parameters"] for each in sizes.per_layer) + outside == sizes.parameters
    held = sum(sum(each["state"].values()) for each in sizes.per_layer)
    assert held + 8 == sizes.state_bytes
    assert sizes.config["model"]["num_layers"] == 3


def test_operations_are_those_of_the_matrix_products(toy_config):
    # One conv layer alone: three square maps of 16 channels, and a head of 32 words.
    sizes = measure(toy_config("model.layers=conv", "model.num_layers=1", "model.mlp=none"))
    assert sizes.flops_per_token == 2 * (3 * 16 * 16 + 32 * 16)


@pytest.mark.parametrize("layers", ["memory x 2", "[memory, conv] x 2", "attention x 3"])
def test_operations_of_all_layers_are_counted(toy_config, layers):
    config = toy_config(f"model.layers={layers}", "model.num_layers=null")
    model = build_model(config, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 16, dtype=torch.int64, device="meta"))
    assert measure(config).flops_per_token == counter.get_total_flops() // 16


@pytest.mark.parametrize(("write", "read"), PAIRS)
def test_every_parameter_learns(toy_config, stirred, write, read):
    # A map that starts at 0 (S4D's of the query) leaves what stands before it without a gradient.
    model = stirred(toy_config(f"write={write}", f"read={read}"))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(32, (2, 16), generator=generator)
    logits, _ = model(tokens)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_sizes_are_the_same_without_torchs_compiler(toy_config):
    config = toy_config("write=gla", "read=interdomain")
    code = (
        "import json, sys; from statelab.loading import load_config; "
        "from statelab.model.shapes_only import without_compiler; "
        "from statelab.sizes import measure; "
        "config = load_config(json.loads(sys.argv[1]))\n"
        "with without_compiler(): sizes = measure(config)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "import torch; torch.compile  # the real one is there again\n"
        "print(sizes.parameters, sizes.state_bytes, sizes.flops_per_token)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(to_dict(config))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    sizes = measure(config)
    expected = f"{sizes.parameters} {sizes.state_bytes} {sizes.flops_per_token}"
    assert done.stdout.strip() == expected, done.stderr
