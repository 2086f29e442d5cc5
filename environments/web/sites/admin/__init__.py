"""The back office of a fictional company that lends machines: tables, record pages, forms, bulk actions and settings."""
