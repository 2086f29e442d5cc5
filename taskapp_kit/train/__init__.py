"""The training engine, which updates the weights of a policy with the tokens that the policy sampled in rollouts.

It communicates with task apps only through `client/`. Only modules that compute with tensors import torch.
`import taskapp_kit` does not import them.
"""
