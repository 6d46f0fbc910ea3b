"""The graph of eight nodes, which most tests of the editor look at."""

from __future__ import annotations

import pytest


@pytest.fixture
def graph():
    from tests.editor.graphs import eight_nodes

    return eight_nodes()


@pytest.fixture
def t(graph):
    """Its tensors, by the last letter of their names."""
    from tests.editor.graphs import Named

    return Named(graph)
