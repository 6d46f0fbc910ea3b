"""Folding factors and offsets per channel into the weights of convolutions and matrix products.

linear: what a convolution or product does with its channels, and how its weights take a factor.
steps: what a node does to each channel.
behind: what stands behind a linear op. before: what stands before one.
"""
