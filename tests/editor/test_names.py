"""Names and arguments of graph_def_editor: those of the submodules. `tests/public_api.txt` records those of the package."""

from __future__ import annotations

import inspect

import pytest

import graphwright.editor as gde

pytestmark = pytest.mark.tensorflow
MODULES = "edit graph match node reroute rewrite select subgraph tensor transform util variable visualization".split()
SIGNATURES = """
select.can_be_regex(obj)
select.make_regex(obj)
util.concatenate_unique(la, lb)
util.ListView(list_)
util.is_iterable(obj)
util.flatten_tree(tree, leaves=None)
util.transform_tree(tree, fn, iterable_type=tuple)
util.check_graphs(*args)
util.get_unique_graph(tops, check_types=None, none_if_empty=False)
util.scope_finalize(scope)
util.scope_dirname(scope)
util.scope_basename(scope)
util.get_predefined_collection_names()
util.find_corresponding_elem(target, dst_graph, dst_scope='', src_scope='')
util.find_corresponding(targets, dst_graph, dst_scope='', src_scope='')
util.python_type_to_attr_value(value)
util.attr_value_to_python_type(attr_value)
util.parse_graphviz_json(json_graph)
rewrite.change_batch_size(g, new_size, inputs)
rewrite.fold_batch_norms(g)
rewrite.fold_old_batch_norms(g)
rewrite.fold_batch_norms_up(g)
"""


def test_functions_of_submodules_have_the_arguments_of_graph_def_editor():
    for line in SIGNATURES.split("\n")[1:-1]:
        module, _, name = line.partition("(")[0].partition(".")
        parameters = inspect.signature(getattr(getattr(gde, module), name)).parameters.values()
        plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
        assert f"{module}.{name}({', '.join(map(str, plain))})".replace("<class 'tuple'>", "tuple") == line


def test_submodules_and_short_names():
    assert [name for name in MODULES if not hasattr(gde, name)] == []
    assert (gde.ph, gde.sgv, gde.sgv_scope) == (gde.make_placeholder_from_dtype_and_shape, gde.make_view, gde.make_view_from_scope)
