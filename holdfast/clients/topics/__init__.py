"""The topics of an application: what they must look like, who may use them, where their logs begin and
end.
"""
