"""A shop for things of the home: categories, search, filters, a basket, a checkout and the orders made so far."""
