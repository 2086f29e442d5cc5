"""The learning engine: from the tokens that a policy sampled in rollouts to the rows of an update.

It knows a task app through `client/` only. torch is imported by the parts that compute, never by `import taskapp_kit`.
"""
