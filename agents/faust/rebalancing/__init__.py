"""Ownership in the group: the assignor, the sharing of tables, and a member's reaction to changes."""
