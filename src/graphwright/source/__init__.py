"""From TensorFlow objects and files to the graph, and back. A door to TensorFlow."""
