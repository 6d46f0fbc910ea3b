"""Steps that run on several devices: each device's share of the joint graph is planned by itself. See docs/distribution.md."""
