"""Who decides: built-in policies, an app's own, and the conversation with a language model."""
