"""What a rule promises, as test classes: subclass one, and name the rule.

`statelab check` runs the same checks. Each is defined once, in a file by its concern.
"""

from statelab.testing.contract import MemoryContract, ReadRuleContract, WriteRuleContract

__all__ = ["MemoryContract", "ReadRuleContract", "WriteRuleContract"]
