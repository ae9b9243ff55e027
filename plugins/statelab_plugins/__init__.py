"""The write rules and read rules that come with statelab, one file a rule, and its benchmarks."""
