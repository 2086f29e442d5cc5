"""The training engine: turns the tokens that a policy sampled in rollouts into updates of its weights.

It talks to task apps through `client/` only. `import taskapp_kit` never imports torch; only the modules that compute do.
"""
