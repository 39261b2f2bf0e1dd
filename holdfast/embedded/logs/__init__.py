"""The logs of the embedded broker's partitions, each led by the rules of holdfast.models.partition_leader."""
