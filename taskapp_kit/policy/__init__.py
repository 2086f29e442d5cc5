"""The telephone: who decides. Built-in policies and an app's own; models follow behind the same port."""
