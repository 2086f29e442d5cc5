"""Actions in a model's text, as JSON or between tags, and the schema for structured output."""
