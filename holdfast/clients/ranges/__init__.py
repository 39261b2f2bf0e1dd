"""The range consumer: work without order, shared out in blocks of offsets."""
