"""The partitions that a worker owns: adopted, folded batch by batch, checked, given up."""
