"""docs/failures.md knows every message of statelab's own, and none that is gone."""

import ast
import re
from dataclasses import dataclass

import pytest

ROOTS = ("platform/statelab", "plugins/statelab_plugins", "mlflow/statelab_mlflow")
KERNELS = "kernels/statelab_kernels"  # stand alone, and raise ValueError

#: What stands for a value in a pattern.
ANY = ".*"
#: The parameter of a function that hands a message on is called so.
MESSAGE = {"message", "what"}


@pytest.fixture(scope="module")
def sites(root):
    """(where, pattern) of each message that is made in the code."""
    files = {file for folder in (*ROOTS, KERNELS) for file in (root / folder).rglob("*.py")}
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(files)}
    errors = subclasses("StatelabError", trees.values())
    shared = {}
    found = []
    for file, tree in trees.items():
        kinds = {"ValueError"} if file.is_relative_to(root / KERNELS) else errors
        own = wrappers(tree, kinds)
        shared |= {name: each for name, each in own.items() if not each.is_method}
        found += [(file, tree, kinds, own)]
    return [
        (f"{file.relative_to(root)}:{line}", pattern)
        for file, tree, kinds, own in found
        for line, pattern in messages(tree, kinds, shared | own)
    ]


@pytest.fixture(scope="module")
def entries(root, page_blocks):
    """The messages of the page; a block may hold several, with an empty line between."""
    page = (root / "docs/failures.md").read_text(encoding="utf-8")
    texts = [block.text for block in page_blocks(page) if block.kind == "text"]
    return [" ".join(each.split()) for text in texts for each in text.split("\n\n")]


def test_messages_are_found_in_all_parts(sites):
    assert len(sites) > 90
    for entry in (
        "unknown key 'a'. `statelab keys` lists all keys.",  # raised where it is made
        "port must be a number from 1 to 65535, got '0'.",  # by a function that raises
        "model.layers='': it names no layer. Write it as "
        '"[memory x 3, attention(window=512)] x 6".',  # by a method that makes the error
        "a is not the folder of a tracked run: it holds no b.",  # the tracker's
        "T must be >= 1, got 0: there is nothing to read.",  # a kernel's
    ):
        assert any(re.fullmatch(pattern, entry) for _, pattern in sites), entry


def test_every_message_has_an_entry(sites, entries):
    missing = [
        f"{where}: {readable(pattern)}"
        for where, pattern in sites
        if not any(re.fullmatch(pattern, entry) for entry in entries)
    ]
    assert not missing, (
        "docs/failures.md lacks these messages. Add each as it is printed, in a ```text block, "
        "with its cause and its mend:\n" + "\n".join(missing)
    )


def test_every_entry_is_a_message(sites, entries):
    gone = [e for e in entries if not any(re.fullmatch(pattern, e) for _, pattern in sites)]
    assert not gone, "docs/failures.md has messages that no code makes:\n" + "\n".join(gone)


def readable(pattern):
    return re.sub(r"\\(.)", r"\1", pattern.replace(ANY, "…"))


@dataclass(frozen=True)
class Wrapper:
    """A function of ours that makes an error of a message that it is given.

    Attributes:
        template: What it makes of the message.
        parameter: The message's name inside it.
        is_method: Called as an attribute, and only in its own file.
    """

    template: ast.expr
    parameter: str
    is_method: bool


def subclasses(root_name, trees):
    """The name of a class and of all that derive from it."""
    bases = {
        each.name: {base.id for base in each.bases if isinstance(base, ast.Name)}
        for tree in trees
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
    }
    known = {root_name}
    while more := {name for name, above in bases.items() if above & known} - known:
        known |= more
    return known


def wrappers(tree, kinds):
    """The functions of a file that hand a message on into an error, by name."""
    found = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            names = [each.arg for each in function.args.args]
            for name in set(names) & MESSAGE:
                for call in filter(lambda node: is_error(node, kinds), ast.walk(function)):
                    found[function.name] = Wrapper(call.args[0], name, "self" in names)
    return found


def messages(tree, kinds, known):
    """(line, pattern) of each message that a file makes."""
    inside = {id(each.template) for each in known.values()}
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and call.args):
            continue
        wrapper = known.get(called(call))
        if wrapper and wrapper.is_method == isinstance(call.func, ast.Attribute):
            given = pattern_of(call.args[0], tree)
            yield call.lineno, pattern_of(wrapper.template, tree, {wrapper.parameter: given})
        elif is_error(call, kinds) and id(call.args[0]) not in inside:
            pattern = pattern_of(call.args[0], tree)
            # Without a word of its own it hands on what another error said.
            if re.search(r"[a-z]{2}", pattern):
                yield call.lineno, pattern


def is_error(node, kinds):
    return (
        isinstance(node, ast.Call)
        and bool(node.args)
        and isinstance(node.func, ast.Name)
        and node.func.id in kinds
    )


def called(call):
    """The name of a function, or of a method of self or of a local object."""
    if isinstance(call.func, ast.Attribute):
        owner = call.func.value
        return call.func.attr if isinstance(owner, ast.Name) and owner.id != "log" else None
    return call.func.id if isinstance(call.func, ast.Name) else None


def pattern_of(node, tree, known=None):
    """A regular expression for what an expression says."""
    known = known or {}
    if isinstance(node, ast.Constant):
        return re.escape(str(node.value))
    if isinstance(node, ast.JoinedStr):
        return "".join(pattern_of(part, tree, known) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return pattern_of(node.value, tree, known) if names(node.value, known) else ANY
    if isinstance(node, ast.Name):
        if node.id in known:
            return known[node.id]
        for each in tree.body:  # a constant of the file
            if isinstance(each, ast.Assign) and names(each.targets[0], {node.id}):
                return pattern_of(each.value, tree)
    return ANY


def names(node, known):
    return isinstance(node, ast.Name) and node.id in known
