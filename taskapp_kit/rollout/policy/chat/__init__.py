"""The conversation with a language model: prompt, rendering of observations, parsing of its messages."""
