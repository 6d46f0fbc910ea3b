"""The vocabulary of tf.contrib.graph_editor and graph_def_editor, for TensorFlow 2.21 and every kind of graph.

`import graphwright.editor as gde` stands for `import graph_def_editor as gde` and, with graphs that are loaded as
`gde.Graph`, for `from tensorflow.contrib import graph_editor as ge`. It is words only: a `gde.Graph` is a view of
an `ir.Graph` (`g.ir`), on which the rest of graphwright works too.
"""

import sys

from graphwright.editor import edit as edit
from graphwright.editor import graph as graph
from graphwright.editor import match as match
from graphwright.editor import node as node
from graphwright.editor import reroute as reroute
from graphwright.editor import rewrite as rewrite
from graphwright.editor import select as select
from graphwright.editor import subgraph as subgraph
from graphwright.editor import tensor as tensor
from graphwright.editor import transform as transform
from graphwright.editor import util as util
from graphwright.editor import variable as variable
from graphwright.editor import visualization as visualization
from graphwright.editor.base_graph import BaseGraph as BaseGraph
from graphwright.editor.doors import open_doors
from graphwright.editor.edit import bypass as bypass
from graphwright.editor.edit import connect as connect
from graphwright.editor.edit import detach as detach
from graphwright.editor.edit import detach_control_inputs as detach_control_inputs
from graphwright.editor.edit import detach_control_outputs as detach_control_outputs
from graphwright.editor.edit import detach_inputs as detach_inputs
from graphwright.editor.edit import detach_outputs as detach_outputs
from graphwright.editor.graph import FunctionGraph as FunctionGraph
from graphwright.editor.graph import Graph as Graph
from graphwright.editor.graph import saved_model_to_graph as saved_model_to_graph
from graphwright.editor.match import OpMatcher as OpMatcher
from graphwright.editor.match import TreeExpr as TreeExpr
from graphwright.editor.match import can_be_regex as can_be_regex
from graphwright.editor.match import make_regex as make_regex
from graphwright.editor.match import op_type as op_type
from graphwright.editor.node import Node as Node
from graphwright.editor.reroute import add_control_inputs as add_control_inputs
from graphwright.editor.reroute import remove_control_inputs as remove_control_inputs
from graphwright.editor.reroute import reroute_inputs as reroute_inputs
from graphwright.editor.reroute import reroute_ios as reroute_ios
from graphwright.editor.reroute import reroute_outputs as reroute_outputs
from graphwright.editor.reroute import reroute_ts as reroute_ts
from graphwright.editor.reroute import swap_inputs as swap_inputs
from graphwright.editor.reroute import swap_ios as swap_ios
from graphwright.editor.reroute import swap_outputs as swap_outputs
from graphwright.editor.reroute import swap_ts as swap_ts
from graphwright.editor.saved_model import SaverInfo as SaverInfo
from graphwright.editor.saved_model import SignatureInfo as SignatureInfo
from graphwright.editor.select import check_cios as check_cios
from graphwright.editor.select import compute_boundary_ts as compute_boundary_ts
from graphwright.editor.select import filter_ops as filter_ops
from graphwright.editor.select import filter_ops_by_optype as filter_ops_by_optype
from graphwright.editor.select import filter_ops_from_regex as filter_ops_from_regex
from graphwright.editor.select import filter_ts as filter_ts
from graphwright.editor.select import filter_ts_from_regex as filter_ts_from_regex
from graphwright.editor.select import get_backward_walk_ops as get_backward_walk_ops
from graphwright.editor.select import get_forward_walk_ops as get_forward_walk_ops
from graphwright.editor.select import get_name_scope_ops as get_name_scope_ops
from graphwright.editor.select import get_ops_ios as get_ops_ios
from graphwright.editor.select import get_walks_intersection_ops as get_walks_intersection_ops
from graphwright.editor.select import get_walks_union_ops as get_walks_union_ops
from graphwright.editor.select import get_within_boundary_ops as get_within_boundary_ops
from graphwright.editor.select import select_ops as select_ops
from graphwright.editor.select import select_ops_and_ts as select_ops_and_ts
from graphwright.editor.select import select_ts as select_ts
from graphwright.editor.subgraph import SubGraphView as SubGraphView
from graphwright.editor.subgraph import make_view as make_view
from graphwright.editor.subgraph import make_view_from_scope as make_view_from_scope
from graphwright.editor.tensor import Tensor as Tensor
from graphwright.editor.transform import Transformer as Transformer
from graphwright.editor.transform import TransformerInfo as TransformerInfo
from graphwright.editor.transform import assign_renamed_collections_handler as assign_renamed_collections_handler
from graphwright.editor.transform import copy as copy
from graphwright.editor.transform import copy_op_handler as copy_op_handler
from graphwright.editor.transform import copy_with_input_replacements as copy_with_input_replacements
from graphwright.editor.transform import graph_replace as graph_replace
from graphwright.editor.transform import keep_t_if_possible_handler as keep_t_if_possible_handler
from graphwright.editor.transform import replace_t_with_placeholder_handler as replace_t_with_placeholder_handler
from graphwright.editor.transform import transform_op_if_inside_handler as transform_op_if_inside_handler
from graphwright.editor.util import ControlOutputs as ControlOutputs
from graphwright.editor.util import get_consuming_ops as get_consuming_ops
from graphwright.editor.util import get_generating_ops as get_generating_ops
from graphwright.editor.util import get_tensors as get_tensors
from graphwright.editor.util import load_variables_to_tf_graph as load_variables_to_tf_graph
from graphwright.editor.util import make_const as make_const
from graphwright.editor.util import make_identity as make_identity
from graphwright.editor.util import make_list_of_op as make_list_of_op
from graphwright.editor.util import make_list_of_t as make_list_of_t
from graphwright.editor.util import make_placeholder as make_placeholder
from graphwright.editor.util import make_placeholder_from_dtype_and_shape as make_placeholder_from_dtype_and_shape
from graphwright.editor.util import make_placeholder_from_tensor as make_placeholder_from_tensor
from graphwright.editor.util import make_simple_binary_op as make_simple_binary_op
from graphwright.editor.util import placeholder_name as placeholder_name
from graphwright.editor.variable import Variable as Variable
from graphwright.editor.visitors import GraphVisitor as GraphVisitor

matcher = OpMatcher

open_doors(edit, reroute, select, subgraph, transform, util, sys.modules[__name__])

ph = make_placeholder_from_dtype_and_shape
sgv = make_view
sgv_scope = make_view_from_scope
