"""Commands that run training jobs, manage models, or deploy an app."""
