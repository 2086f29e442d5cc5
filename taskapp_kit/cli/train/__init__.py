"""Commands of training jobs and their models, and those that deploy an app."""
