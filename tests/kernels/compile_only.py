"""Compile what the fused forms launch, for GPUs that need not be there; a script of its own.

Each launch is caught and compiled with the settings that it would run with. Prints, a line a
kernel: compute capability, name, bytes that a thread spills.
"""

import os
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32", torch.int64: "*i64"}
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
# For the generation that is measured all kernels, for others the one with most kinds of code.
WANTED = {90: None, 80: {"correct_kernel"}, 100: {"correct_kernel"}}


def compile_launch(function, *args, grid, warmup, **kwargs):
    given = dict(zip(function.arg_names, args, strict=False)) | kwargs
    options = {name: given[name] for name in given if name not in function.arg_names}
    signature, constants, aligned = {}, {}, {}
    for index, parameter in enumerate(function.params):
        name, value = parameter.name, given[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[name], constants[name] = "constexpr", value
            continue
        is_tensor = isinstance(value, torch.Tensor)
        signature[name] = TYPES[value.dtype] if is_tensor else "i32"
        if is_tensor or value % 16 == 0:
            aligned[(index,)] = [["tt.divisibility", 16]]
    for capability, names in WANTED.items():
        if names is None or function.__name__ in names:
            source = ASTSource(function, signature, constants, aligned)
            target = GPUTarget("cuda", capability, 32)
            compiled = triton.compile(source, target=target, options=options)
            spilled = spilled_bytes(compiled.asm["cubin"])
            sys.stdout.write(f"{capability} {function.__name__} {spilled}\n")


def spilled_bytes(cubin: bytes) -> int:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [TOOLS / "cuobjdump", "-res-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


def main() -> None:
    JITFunction.run = compile_launch
    for family in ("gated", "curvature"):
        import_module(f"statelab_kernels.{family}.ops").triton_refuses = lambda *_, **__: None
    from statelab_kernels import ccq_query, gated_recall

    x = torch.zeros(2, 4096, 64, 128, dtype=torch.bfloat16, requires_grad=True)
    out, _ = gated_recall(x, x, x, g=x, backend="fused")
    out.sum().backward()
    out, _ = ccq_query(x, x, x[..., 0].float(), backend="fused")
    out.sum().backward()


if __name__ == "__main__":
    main()
