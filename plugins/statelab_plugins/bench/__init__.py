"""The benchmarks, `statelab bench WHAT`, and what they measure with."""
