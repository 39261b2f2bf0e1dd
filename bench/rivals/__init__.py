"""What holdfast is measured against."""
