"""Files and objects of TensorFlow <-> `ir.Graph`."""
