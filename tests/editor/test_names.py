"""The names that existing code uses are there, and the guide says of each how it is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import graphwright.editor as gde

pytestmark = pytest.mark.tensorflow
GUIDE = (Path(__file__).parents[2] / "docs" / "editor.md").read_text(encoding="utf-8")

MODULES = "edit graph match node reroute rewrite select subgraph tensor transform util variable visualization".split()

# Functions and methods with their arguments and defaults, as graph_def_editor had them. Those of contrib.graph_editor are the same but
# for the graph as first argument of what makes placeholders, which there was the default graph. What may be left out has got a default: `t`
# of `make_placeholder_from_tensor`, `g` and `dtype` of `make_placeholder_from_dtype_and_shape`, and `shape` of `make_placeholder`.
SIGNATURES = """
filter_ts(ops, positive_filter)
filter_ts_from_regex(ops, regex)
filter_ops(ops, positive_filter)
filter_ops_by_optype(ops, op_types)
filter_ops_from_regex(ops, regex)
get_name_scope_ops(ops, scope)
check_cios(control_inputs=False, control_outputs=None, control_ios=None)
get_ops_ios(ops, control_inputs=False, control_outputs=None, control_ios=None)
compute_boundary_ts(ops)
get_within_boundary_ops(ops, seed_ops, boundary_ops=(), inclusive=True, control_inputs=False, control_outputs=None, control_ios=None)
get_forward_walk_ops(seed_ops, inclusive=True, within_ops=None, within_ops_fn=None, stop_at_ts=(), control_outputs=None)
get_backward_walk_ops(seed_ops, inclusive=True, within_ops=None, within_ops_fn=None, stop_at_ts=(), control_inputs=False)
get_walks_intersection_ops(forward_seed_ops, backward_seed_ops, forward_inclusive=True, backward_inclusive=True, within_ops=None,
    within_ops_fn=None, control_inputs=False, control_outputs=None, control_ios=None)
get_walks_union_ops(forward_seed_ops, backward_seed_ops, forward_inclusive=True, backward_inclusive=True, within_ops=None,
    within_ops_fn=None, control_inputs=False, control_outputs=None, control_ios=None)
select_ops(*args, **kwargs)
select_ts(*args, **kwargs)
select_ops_and_ts(*args, **kwargs)
select.can_be_regex(obj)
select.make_regex(obj)
detach_control_inputs(sgv)
detach_control_outputs(sgv, control_outputs)
detach_inputs(sgv, control_inputs=False)
detach_outputs(sgv, control_outputs=None)
detach(sgv, control_inputs=False, control_outputs=None, control_ios=None)
connect(sgv0, sgv1, disconnect_first=False)
bypass(sgv)
swap_ts(ts0, ts1, can_modify=None, cannot_modify=None)
reroute_ts(ts0, ts1, can_modify=None, cannot_modify=None)
swap_inputs(sgv0, sgv1)
reroute_inputs(sgv0, sgv1)
swap_outputs(sgv0, sgv1)
reroute_outputs(sgv0, sgv1)
swap_ios(sgv0, sgv1)
reroute_ios(sgv0, sgv1)
remove_control_inputs(op, cops)
add_control_inputs(op, cops)
SubGraphView(inside_ops=(), passthrough_ts=())
SubGraphView.remap_default(remove_input_map=True, remove_output_map=True)
SubGraphView.remap_inputs(new_input_indices)
SubGraphView.remap_outputs(new_output_indices)
SubGraphView.remap(new_input_indices=None, new_output_indices=None)
SubGraphView.remap_outputs_make_unique()
SubGraphView.remap_outputs_to_consumers()
SubGraphView.remove_unused_ops(control_inputs=True)
SubGraphView.find_op_by_name(op_name)
SubGraphView.op(op_id)
SubGraphView.is_passthrough(t)
SubGraphView.input_index(t)
SubGraphView.output_index(t)
SubGraphView.consumers()
SubGraphView.copy()
make_view(*args, **kwargs)
make_view_from_scope(scope, graph)
replace_t_with_placeholder_handler(info, t)
keep_t_if_possible_handler(info, t)
assign_renamed_collections_handler(info, elem, elem_)
transform_op_if_inside_handler(info, op, keep_if_possible=True)
copy_op_handler(info, op, new_inputs, copy_shape_and_dtype=False, nodedef_fn=None)
Transformer()
Transformer.__call__(sgv, dst_graph, dst_scope, src_scope='', reuse_dst_scope=False)
TransformerInfo(info)
TransformerInfo.transformed(original, missing_fn=None)
TransformerInfo.original(transformed, missing_fn=None)
copy(sgv, dst_graph=None, dst_scope='', src_scope='', reuse_dst_scope=False)
copy_with_input_replacements(sgv, replacement_ts, dst_graph=None, dst_scope='', src_scope='', reuse_dst_scope=False)
graph_replace(target_ts, replacement_ts, dst_scope='', src_scope='', reuse_dst_scope=False)
op_type(op_types, op=None)
OpMatcher(positive_filter)
OpMatcher.__call__(op)
OpMatcher.input_ops(*args)
OpMatcher.control_input_ops(*args)
OpMatcher.output_ops(*args)
make_list_of_op(ops, check_graph=True, allow_graph=True, ignore_ts=False)
make_list_of_t(ts, check_graph=True, allow_graph=True, ignore_ops=False)
get_tensors(graph)
get_generating_ops(ts)
get_consuming_ops(ts)
ControlOutputs(g)
ControlOutputs.update()
ControlOutputs.get_all()
ControlOutputs.get(op)
placeholder_name(t=None, scope=None, prefix='geph')
make_placeholder_from_tensor(g, t=None, scope=None, prefix='geph')
make_placeholder_from_dtype_and_shape(g=None, dtype=None, shape=None, scope=None, prefix='geph')
load_variables_to_tf_graph(g)
make_const(g, name, value, uniquify_name=False)
make_placeholder(g, name, dtype, shape=None, uniquify_name=False)
make_identity(g, name, input, uniquify_name=False)
make_simple_binary_op(g, name, op_name, input_1, input_2, dtype=None, uniquify_name=False)
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
saved_model_to_graph(saved_model_path, tag=None, include_saver=True, include_signatures=True, fallback_to_default_graph=False)
Graph(g=None, name=None, collections=None, saver_info=None, signature_info=None)
Graph.get_node_by_name(name)
Graph.contains_node(name)
Graph.add_node(name, op_name, uniquify_name=False, debug_info=None)
Graph.add_node_from_node_def(node_def, set_inputs=False, set_control_inputs=False)
Graph.remove_node_by_name(name, check_for_refs=True)
Graph.rename_node(old_name, new_name)
Graph.add_variable(name)
Graph.add_variable_from_variable_def(variable_def, skip_if_present=False)
Graph.get_variable_by_name(name)
Graph.unique_name(name)
Graph.contains_tensor(tensor_name)
Graph.get_tensor_by_name(tensor_name, error_msg=None)
Graph.increment_version_counter()
Graph.add_collection_from_collection_def(collection_name, collection_def, validate_name=True)
Graph.get_collection_by_name(name)
Graph.get_all_collection_keys()
Graph.to_graph_def(add_shapes=True)
Graph.to_tf_graph()
Graph.to_saved_model(saved_model_path, tags=None)
Graph.node_to_frame_names(n)
Graph.frame_name_to_nodes(frame_name)
Graph.get_frame_names()
Graph.breadth_first_visitor(visitor, starting_nodes=None, visited_nodes=None, iterate_functions=False, escape_functions=False,
    max_depth=None)
Graph.backwards_breadth_first_visitor(visitor, starting_nodes=None, visited_nodes=None, iterate_functions=False,
    escape_functions=False, max_depth=None)
Graph.nodes_iterator(predicate=lambda _: True, iterate_functions=False)
Graph.infer_shapes_and_dtypes(starting_nodes=None)
Graph.get_function_graph_by_name(function_name)
FunctionGraph.to_function_graph_def(add_shapes=True)
FunctionGraph.to_tf_function_graph()
FunctionGraph.frame_name_to_nodes(frame_name)
FunctionGraph.get_frame_names()
Node.change_op_type(new_op_type)
Node.output(index)
Node.replace_input(index, new_input)
Node.set_inputs(new_inputs)
Node.set_inputs_from_strings(new_inputs, set_control_inputs=True)
Node.set_control_inputs(new_control_inputs)
Node.set_outputs_from_pairs(new_outputs)
Node.infer_outputs()
Node.add_colocation_group(head_node_name, validate=True)
Node.to_node_def(target=None, add_shapes=True)
Node.get_attr(key)
Node.has_attr(key)
Node.get_attr_keys()
Node.add_attr(key, value, validate_colocation_groups=False)
Node.replace_attr(key, value, validate_colocation_groups=False)
Node.clear_attrs()
Node.add_to_collection(collection_name)
Node.remove_from_collections()
Tensor.consumers()
Tensor.add_to_collection(collection_name)
Variable(g)
Variable.is_same_variable(other)
Variable.from_proto(variable_def, validate=True, allow_duplicates=False)
Variable.to_proto()
Variable.validate(allow_duplicate=False)
Variable.add_to_collection(collection_name)
SaverInfo(path, saver_def)
SignatureInfo()
SignatureInfo.add_signature_def(name, signature_def)
GraphVisitor.visit_node(n)
TreeExpr(alias=None, op=None, optional=None, inputs=None)
TreeExpr.eval_from(potential_root_node)
rewrite.change_batch_size(g, new_size, inputs)
rewrite.fold_batch_norms(g)
rewrite.fold_old_batch_norms(g)
rewrite.fold_batch_norms_up(g)
"""

PROPERTIES = {
    gde.Graph: """name nodes tensors node_names version frozen has_passthrough_saver signatures variable_names function_names
        colocation_groups""",
    gde.FunctionGraph: "name nodes tensors node_names version frozen input_nodes output_nodes parent_graph",
    gde.Node: "name op_type graph id_in_graph outputs inputs control_inputs device colocation_groups collection_names",
    gde.Tensor: "node op value_index dtype shape graph name collection_names",
    gde.Variable: "graph name initial_value_name initializer_name snapshot_name trainable collection_names",
    gde.SubGraphView: "graph ops inputs outputs connected_inputs connected_outputs passthroughs",
    gde.ControlOutputs: "graph",
    gde.SignatureInfo: "signature_defs",
}


def spelled(function, bound):
    """The arguments of a function as one writes them, without `self`."""
    parts = []
    for parameter in list(inspect.signature(function).parameters.values())[bound:]:
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = parameter.default
        if default is tuple:
            text = "=tuple"
        elif default is parameter.empty:
            text = ""
        else:
            text = "=lambda _: True" if callable(default) else f"={default!r}"
        parts.append(f"{star}{parameter.name}{text}")
    return ", ".join(parts)


def listed():
    return [line.partition("(") for line in SIGNATURES.replace(",\n    ", ", ").strip().splitlines()]


@pytest.mark.parametrize(("path", "arguments"), [(path, rest[:-1]) for path, _, rest in listed()], ids=lambda x: x[:40])
def test_a_function_takes_what_it_took(path, arguments):
    found, owner = gde, None
    for part in path.split("."):
        found, owner = getattr(found, part), found
    assert spelled(found, bound=inspect.isclass(owner)) == arguments


@pytest.mark.parametrize(("kind", "names"), PROPERTIES.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_a_class_has_its_properties(kind, names):
    assert [name for name in names.split() if not hasattr(kind, name)] == []


def test_the_module_offers_its_parts_and_short_names():
    assert [name for name in MODULES if not hasattr(gde, name)] == []
    assert (gde.ph, gde.sgv, gde.sgv_scope) == (gde.make_placeholder_from_dtype_and_shape, gde.make_view, gde.make_view_from_scope)


def test_the_guide_names_every_function_and_class():
    known = set(re.findall(r"\w+", GUIDE))
    top = {path.partition(".")[0] for path, _, _ in listed()}
    assert sorted(name for name in top - known if not name.endswith("_handler")) == []
