"""The names that existing code uses are there, and the guide says of each how it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import graphwright.editor as gde

pytestmark = pytest.mark.tensorflow
GUIDE = (Path(__file__).parents[2] / "docs" / "editor.md").read_text(encoding="utf-8")

MODULE = """
Graph Node Tensor Variable GraphVisitor SaverInfo SignatureInfo saved_model_to_graph filter_ops filter_ops_by_optype filter_ops_from_regex
filter_ts filter_ts_from_regex select_ops select_ts select_ops_and_ts get_forward_walk_ops get_backward_walk_ops
get_walks_intersection_ops get_walks_union_ops get_within_boundary_ops get_name_scope_ops compute_boundary_ts check_cios get_ops_ios
can_be_regex make_regex TreeExpr sgv sgv_scope make_view make_view_from_scope SubGraphView copy copy_with_input_replacements graph_replace
Transformer TransformerInfo replace_t_with_placeholder_handler keep_t_if_possible_handler assign_renamed_collections_handler
transform_op_if_inside_handler copy_op_handler reroute_ts reroute_ios reroute_inputs reroute_outputs swap_ts swap_ios swap_inputs
swap_outputs add_control_inputs remove_control_inputs detach detach_inputs detach_outputs detach_control_inputs detach_control_outputs
connect bypass OpMatcher op_type make_const make_placeholder make_placeholder_from_tensor make_placeholder_from_dtype_and_shape
make_identity make_simple_binary_op ph placeholder_name make_list_of_op make_list_of_t get_tensors get_generating_ops get_consuming_ops
ControlOutputs load_variables_to_tf_graph util select subgraph transform reroute edit match graph node tensor variable rewrite
""".split()

MEMBERS = {
    gde.Graph: """name nodes tensors node_names version frozen get_node_by_name contains_node contains_tensor get_tensor_by_name rename_node
        remove_node_by_name add_node add_node_from_node_def unique_name to_graph_def to_tf_graph to_saved_model signatures variable_names
        get_all_collection_keys get_collection_by_name add_collection_from_collection_def add_variable add_variable_from_variable_def
        get_variable_by_name has_passthrough_saver function_names get_function_graph_by_name nodes_iterator breadth_first_visitor
        backwards_breadth_first_visitor infer_shapes_and_dtypes node_to_frame_names frame_name_to_nodes get_frame_names colocation_groups
        increment_version_counter""",
    gde.Node: """name op_type change_op_type graph id_in_graph outputs output inputs replace_input set_inputs control_inputs device
        colocation_groups add_colocation_group to_node_def get_attr has_attr get_attr_keys add_attr replace_attr clear_attrs
        set_control_inputs set_outputs_from_pairs infer_outputs set_inputs_from_strings collection_names add_to_collection
        remove_from_collections""",
    gde.Tensor: "node op value_index dtype shape graph consumers name collection_names add_to_collection",
    gde.Variable: """is_same_variable from_proto to_proto validate graph name initial_value_name initializer_name snapshot_name trainable
        collection_names add_to_collection""",
    gde.SubGraphView: """copy remap_default remap_inputs remap_outputs remap remap_outputs_make_unique remap_outputs_to_consumers
        remove_unused_ops find_op_by_name graph ops inputs outputs connected_inputs connected_outputs passthroughs op is_passthrough
        input_index output_index consumers""",
    gde.rewrite: "change_batch_size fold_batch_norms fold_old_batch_norms fold_batch_norms_up",
    gde.util: """concatenate_unique ListView is_iterable flatten_tree transform_tree check_graphs get_unique_graph scope_finalize
        scope_dirname scope_basename get_predefined_collection_names find_corresponding_elem find_corresponding python_type_to_attr_value
        attr_value_to_python_type""",
}


@pytest.mark.parametrize("name", MODULE)
def test_the_module_offers(name):
    assert hasattr(gde, name)


@pytest.mark.parametrize(
    ("place", "names"), [(place, names.split()) for place, names in MEMBERS.items()], ids=lambda x: getattr(x, "__name__", "")
)
def test_a_class_or_submodule_offers(place, names):
    assert [name for name in names if not hasattr(place, name)] == []


def test_the_guide_names_every_function_and_class():
    listed = set(re.findall(r"\w+", GUIDE))
    handlers = {name for name in MODULE if name.endswith("_handler")}
    modules = {"subgraph", "transform", "reroute", "edit", "match", "graph", "node", "tensor", "variable"}
    assert [name for name in MODULE if name not in listed | handlers | modules] == []
