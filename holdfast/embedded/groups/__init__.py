"""The embedded broker's group coordinator: holdfast.models.group_coordinator and consumer_group, with
requests that wait.
"""
