"""The back office of an invented company that lends machines: tables, record pages, forms, bulk actions, settings."""
