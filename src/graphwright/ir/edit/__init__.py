"""Further verbs that edit a graph. Each checks everything first."""

from graphwright.ir.edit.clone import CloneResult as CloneResult
from graphwright.ir.edit.clone import clone as clone
from graphwright.ir.edit.clone import copy_graph as copy_graph
from graphwright.ir.edit.inline import inline as inline
from graphwright.ir.edit.insert import add_identity as add_identity
from graphwright.ir.edit.insert import add_placeholder as add_placeholder
from graphwright.ir.edit.insert import insert_after as insert_after
from graphwright.ir.edit.insert import insert_before as insert_before
from graphwright.ir.edit.library import add_function as add_function
from graphwright.ir.edit.library import call_sites as call_sites
from graphwright.ir.edit.library import remove_function as remove_function
from graphwright.ir.edit.library import remove_unused_functions as remove_unused_functions
from graphwright.ir.edit.library import rename_functions as rename_functions
from graphwright.ir.edit.library import unique_function_name as unique_function_name
from graphwright.ir.edit.prune import prune as prune
from graphwright.ir.edit.reroute import replace_node as replace_node
from graphwright.ir.edit.reroute import reroute as reroute
from graphwright.ir.edit.reroute import reroute_control as reroute_control
from graphwright.ir.edit.reroute import set_control_inputs as set_control_inputs
