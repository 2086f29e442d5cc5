"""Actions written as text: as JSON, between tags, and the schema of structured output."""
